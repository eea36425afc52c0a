"""``python tests/snapshots/test_show.py`` writes the drawings anew; review them as a diff."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import graph

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Alias, Block, Call, Child
from fuzzshard.corpus.entry import Confirmation, CorpusEntry, make_entry
from fuzzshard.doctor import clean_case
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.convolutions import Conv1d
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.report.show import drawn
from fuzzshard.verdict import Finding, Status, Verdict

FOLDER = Path(__file__).parent


def chain(**modules: object) -> Block:
    """Calls the modules one after another."""
    nodes, value = [], "x"
    for name in modules:
        nodes.append(Call(name=f"{name}_out", module=name, args=(value,)))
        value = f"{name}_out"
    children = tuple(Child(name=name, module=module) for name, module in modules.items())
    return Block(children=children, nodes=tuple(nodes), outputs=(value,))


def every_leaf() -> Case:
    return Case(
        seed=1,
        model=chain(
            linear=Linear(out=6, bias=False),
            conv=Conv1d(out=4),
            layer_norm=LayerNorm(bias=False),
            rms_norm=RMSNorm(),
            batch_norm=BatchNorm(),
            mlp=MLP(hidden=8),
            attention=Attention(heads=2),
            scale=RawParameter(),
            dropout=Dropout(p=0.25),
            gelu=Activation(fn="gelu"),
        ),
        inputs=Inputs(batch=2, seq=3, tensors=(TensorSpec(size=4),)),
        mesh=Mesh(shard=4),
        schedule=(ops.Forward(), ops.Backward()),
        dtype="float64",
        values="dyadic",
        loss="sum",
        engines=("fully_shard",),
    )


def everything() -> Case:
    model = graph(
        "e = embed(tokens)",
        "h0 = a(x)",
        "h1 = inner(h0)",
        "s = add(h1, e)",
        "h2 = again(s) without grad",
        "joined = concat(h2, h0)",
        "o = c(s)",
        outputs="joined o",
        inputs="x tokens",
        returns="dict",
        embed=Embedding(vocab=5, dim=4),
        a=Linear(out=4),
        inner=chain(norm=LayerNorm(), mlp=MLP(hidden=8)),
        again=Alias(target="a"),
        c=Linear(out=4),
        spare=RawParameter(matrix=True),
    )
    return Case(
        seed=7,
        model=model,
        inputs=Inputs(batch=3, tensors=(TensorSpec(size=4), TensorSpec(kind="ids", size=5))),
        mesh=Mesh(shard=2, replicate=2),
        wrap=(
            WrapGroup(modules=("inner.mlp",), reshard_after_forward=False),
            WrapGroup(modules=("a", "c"), reshard_after_forward=2),
            WrapGroup(modules=("",)),
        ),
        ties=(Tie(parameter="c.weight", source="a.weight"),),
        freezes=(Freeze(target="inner"), Freeze(target="embed.weight", after_wrap=True)),
        checkpoints=(Checkpoint(module="inner"),),
        optimizer=Optimizer(momentum=0.5),
        schedule=(
            ops.ZeroGrad(),
            ops.Forward(),
            ops.SetFlag(flag="requires_gradient_sync", value=False),
            ops.Forward(batch=1, outputs=(0,)),
            ops.Backward(which="oldest"),
            ops.SetFlag(
                flag="reshard_after_backward", value=True, target="inner.mlp", recurse=False
            ),
            ops.Forward(batch=2),
            ops.SetFlag(flag="requires_gradient_sync", value=True),
            ops.Backward(),
            ops.Step(),
            ops.SetMode(train=False),
            ops.SetRequiresGrad(target="a.bias", value=False),
            ops.Forward(grad=False),
        ),
    )


def bare(case: Case) -> CorpusEntry:
    return CorpusEntry(case=case)


def finding() -> CorpusEntry:
    divergence = Finding(
        oracle="gradient",
        engine="fully_shard",
        observed="[0.5, 0.25]",
        expected="[0.25, 0.125]",
        op=8,
        name="a.weight",
        rank=1,
        comparison="bitwise",
        error=0.25,
        bound=0.0,
    )
    missing = Finding(
        oracle="registration", engine="ddp", observed="[none]", expected="a Parameter"
    )
    verdict = Verdict(
        status=Status.DIVERGENCE,
        findings=(divergence, missing),
        comparison="bitwise",
        notes={"ddp": "refused: [all] parameters are frozen"},
    )
    info = {"torch": "2.13.0", "backend": "gloo"}
    return make_entry(everything(), verdict, info, confirmed=Confirmation(runs=3, reproduced=3))


def hang() -> CorpusEntry:
    late = Finding(
        oracle="deadline", engine="fully_shard", observed="no answer", expected="in 9.0 s"
    )
    stack = 'File "train.py", line 7 in backward\nFile "collectives.py", line 99 in wait'
    verdict = Verdict(
        status=Status.HANG, findings=(late,), stacks={"rank 0": stack, "rank 1": "exited"}
    )
    return make_entry(
        clean_case(2), verdict, {"torch": "2.13.0", "backend": "nccl"}, preload=("fault.py",)
    )


DRAWINGS = {
    "clean": lambda: bare(clean_case(2)),
    "every_leaf": lambda: bare(every_leaf()),
    "everything": lambda: bare(everything()),
    "finding": finding,
    "hang": hang,
}


def draw(name: str) -> str:
    entry = DRAWINGS[name]()
    validate(entry.case)
    return drawn(entry, Path("corpus/findings/name")) + "\n"


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_drawing_is_as_reviewed(name: str) -> None:
    assert draw(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for drawing in DRAWINGS:
        (FOLDER / f"{drawing}.txt").write_text(draw(drawing), encoding="utf-8")

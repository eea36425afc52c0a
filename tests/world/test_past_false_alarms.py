"""Cases that the harness once accused torch of, each a documented behaviour or a mistake of the
reference.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cases import BACKWARD, FORWARD, STEP, ZERO, chain, float_inputs, groups, make_case

from fuzzshard.campaign.explain import OnMends
from fuzzshard.campaign.judge import judge
from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Optimizer, TensorSpec
from fuzzshard.case.codec import decode
from fuzzshard.case.graph import Alias, Block, Call, Child, TensorOp
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import (
    Abort,
    CorruptState,
    Forward,
    LoadState,
    Reshard,
    SaveState,
    SetFlag,
    SetPath,
    SetRequiresGrad,
)
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

NO_SYNC = SetFlag(flag="requires_gradient_sync", value=False)
SYNC = SetFlag(flag="requires_gradient_sync", value=True)
NOT_LAST = SetFlag(flag="is_last_backward", value=False)
LINEAR = Linear(out=2, bias=False)
WIDE = Linear(out=5)


def block(*nodes: Call | TensorOp, outputs: tuple[str, ...], returns="tensor", **modules) -> Block:
    return Block(
        children=tuple(Child(name=n, module=m) for n, m in modules.items()),
        nodes=nodes,
        outputs=outputs,
        returns=returns,
        inputs=("x",),
    )


def use(name: str, module: str, *args: str) -> Call:
    return Call(name=name, module=module, args=args)


TWO_OUTPUTS = block(
    use("h0", "a", "x"),
    use("h1", "b", "x"),
    outputs=("h0", "h1"),
    returns="tuple",
    a=LINEAR,
    b=LINEAR,
)
LAST_USES_ONE = (NO_SYNC, FORWARD, BACKWARD, SYNC, Forward(outputs=(0,)), BACKWARD)
UNDER_TWO_NAMES = block(
    use("h0", "b", "x"),
    outputs=("h0",),
    a=LINEAR,
    b=block(use("h0", "c", "x"), outputs=("h0",), c=Alias(target="a")),
)


PAST: dict[str, Case] = {
    "gradients that outgrow their reduction are cast before they add up or then": make_case(
        chain(a=RawParameter()),
        (NO_SYNC, FORWARD, BACKWARD, Forward(batch=1), BACKWARD),
        dtype="float64",
        wrap=(
            msgspec.structs.replace(
                *groups(""),
                precision=Precision(param="float16", reduce="float32", cast_inputs=False),
            ),
        ),
        engines=("fully_shard",),
    ),
    "recomputing a block counts a batch norm that is registered in it a second time": make_case(
        block(
            *(use("h0", "a", "x"), use("h1", "n", "h0"), use("h2", "b", "h1")),
            outputs=("h2",),
            a=LINEAR,
            n=BatchNorm(),
            b=block(use("h0", "s", "x"), outputs=("h0",), s=Alias(target="n")),
        ),
        (FORWARD, BACKWARD, STEP, ZERO, FORWARD, BACKWARD),
        checkpoints=(Checkpoint(module="b"),),
    ),
    "nothing says which gradients of inputs come before an exception in backward": make_case(
        msgspec.structs.replace(
            block(use("h0", "a", "x"), outputs=("y", "h0"), returns="tuple", a=LINEAR),
            inputs=("x", "y"),
        ),
        (Abort(target="a", batch=3, during="backward"), FORWARD, BACKWARD),
        inputs=Inputs(batch=1, tensors=(TensorSpec(size=2, requires_grad=True),) * 2),
        wrap=groups(""),
    ),
    "a frozen group still reduces what it accumulated when a backward passes it": make_case(
        chain(a=LINEAR, b=LINEAR),
        (
            *(FORWARD, BACKWARD, NO_SYNC, FORWARD, BACKWARD, SYNC),
            *(SetRequiresGrad(target="b", value=False), FORWARD, BACKWARD),
        ),
        wrap=groups("b"),
    ),
    "a group frozen after the forward still reduces what it accumulated": make_case(
        chain(a=LINEAR),
        (
            NO_SYNC,
            FORWARD,
            BACKWARD,
            SYNC,
            FORWARD,
            Reshard(),
            SetRequiresGrad(target="", value=False),
            BACKWARD,
        ),
        wrap=groups("a"),
    ),
    "a backward through an output that is the input reduces what was accumulated": make_case(
        block(use("h0", "a", "x"), outputs=("h0", "x"), returns="tuple", a=LINEAR),
        (NO_SYNC, Forward(outputs=(0,)), BACKWARD, SYNC, Forward(outputs=(1,)), BACKWARD),
        wrap=groups(""),
        engines=("fully_shard",),
    ),
    "a backward that misses an FSDP root leaves what that root accumulated": make_case(
        block(use("h0", "b", "x"), outputs=("h0",), a=LINEAR, b=LINEAR),
        (NO_SYNC, FORWARD, BACKWARD, Forward(target="a"), SYNC, BACKWARD),
        wrap=groups("b"),
    ),
    "a backward that had nothing to differentiate synchronises nothing before a step": make_case(
        block(
            Call(name="h0", module="a", args=("x",), alternatives=("b",)),
            outputs=("h0",),
            a=LINEAR,
            b=Activation(),
        ),
        (NO_SYNC, FORWARD, BACKWARD, SetPath(path=1), SYNC, FORWARD, BACKWARD, Reshard(), STEP),
        wrap=groups(""),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=2),)),
        engines=("ddp", "replicate", "fully_shard", "fsdp1"),
    ),
    "FSDP1 may lose a change after a forward whose backward differentiated nothing": make_case(
        chain(a=LINEAR),
        (FORWARD, BACKWARD, STEP, FORWARD),
        wrap=(),
        freezes=(Freeze(target="a"),),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=2),)),
        engines=("fsdp1",),
        fsdp1=FSDP1(summon="written"),
    ),
    "a reshard before a step is for a root that its last backward missed": make_case(
        block(
            use("h0", "a", "x"),
            use("h1", "b", "x"),
            outputs=("h1", "h0"),
            returns="tuple",
            a=LINEAR,
            b=LINEAR,
        ),
        (FORWARD, BACKWARD, Forward(outputs=(1,)), BACKWARD, Reshard(), STEP, FORWARD),
        wrap=groups("b"),
    ),
    "parameters are resharded and frozen between forward and backward": make_case(
        chain(a=LINEAR, b=LINEAR),
        (
            *(FORWARD, Reshard(), SetRequiresGrad(target="b", value=False), BACKWARD),
            *(STEP, FORWARD, BACKWARD),
        ),
        wrap=groups("a", ""),
    ),
    "a list group that ran in part and completes in the root's forward ends nothing": make_case(
        chain(a=Activation(), b=Activation(), c=LINEAR),
        (FORWARD, BACKWARD, Forward(target="a"), FORWARD, BACKWARD),
        wrap=groups(("a", "b"), ""),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=5),)),
        engines=("fully_shard",),
    ),
    "a group that a recomputation calls does not end the forward of its root": make_case(
        block(
            use("h0", "a", "x"),
            use("h1", "b", "h0"),
            TensorOp(name="h2", op="add", args=("h1", "x")),
            outputs=("h2", "h0"),
            returns="tuple",
            a=LINEAR,
            b=Linear(out=2),
        ),
        (Forward(grad=False), NOT_LAST, FORWARD, BACKWARD, FORWARD),
        wrap=groups("b", ""),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=2),)),
        checkpoints=(Checkpoint(module="", implementation="composable"),),
        engines=("fully_shard",),
    ),
    "a flag set at a module concerns what is registered below it under another name": make_case(
        UNDER_TWO_NAMES,
        (SetFlag(flag="requires_gradient_sync", value=False, target="b"), FORWARD, BACKWARD),
        wrap=groups("a"),
    ),
    "an FSDP root claims what is registered below it under another name": make_case(
        UNDER_TWO_NAMES, (FORWARD, BACKWARD, STEP, FORWARD), wrap=groups("a", "b")
    ),
    "a checkpoint wrapper within another goes into the module that the outer one wraps": make_case(
        chain(m=chain(a=LINEAR)),
        wrap=groups("m.a", ""),
        checkpoints=tuple(Checkpoint(module=m, implementation="wrapper") for m in ("m", "m.a")),
        engines=("ddp", "fully_shard", "fsdp1"),
    ),
    "what no group manages is averaged also by a backward that does not reach it": make_case(
        TWO_OUTPUTS, LAST_USES_ONE, wrap=groups(""), ignored=("b",)
    ),
    "DDP has no roots that a backward could miss": make_case(
        TWO_OUTPUTS, LAST_USES_ONE, wrap=groups("b"), engines=("ddp", "replicate", "fully_shard")
    ),
    "FSDP1 without sharding adds unreduced gradients to reduced ones, in their dtype": make_case(
        chain(a=LINEAR, b=LINEAR),
        (FORWARD, BACKWARD, ZERO, NO_SYNC, FORWARD, BACKWARD),
        wrap=groups(""),
        mesh=1,
        optimizer=Optimizer(exclude=("b",)),
        engines=("fsdp1",),
        fsdp1=FSDP1(use_orig_params=True, precision=Precision(param="bfloat16")),
    ),
    "FSDP1 does not wait for the gradient of an input that no backward comes to": make_case(
        Block(
            children=(Child(name="a", module=LINEAR),),
            nodes=(use("h0", "a", "x0"),),
            outputs=("h0",),
            inputs=("x0", "x1"),
        ),
        (FORWARD, BACKWARD),
        wrap=(),
        freezes=(Freeze(target=""),),
        inputs=Inputs(batch=1, tensors=(TensorSpec(size=2, requires_grad=True),) * 2),
        engines=("fsdp1",),
    ),
    "recomputation in a compiled graph does not count the batch of a norm again": make_case(
        chain(a=BatchNorm()),
        (FORWARD, BACKWARD, FORWARD),
        wrap=(),
        checkpoints=(Checkpoint(module="a", implementation="utils"),),
        compile="aot_eager",
        engines=("fully_shard",),
    ),
    "saving gives an optimizer that has no state yet states of zeros": make_case(
        block(outputs=("x",), a=LINEAR),
        (FORWARD, BACKWARD, STEP, SaveState()),
        wrap=groups(""),
        optimizer=Optimizer(momentum=0.5),
    ),
    "the reference looks for gradients of a view that was changed in place": make_case(
        block(
            use("h0", "a", "x"),
            TensorOp(name="h1", op="iadd", args=("h0", "x")),
            outputs=("h1",),
            a=WIDE,
        ),
        wrap=groups(""),
        inputs=float_inputs(seq=2),
        engines=("ddp",),
    ),
    "a state that is lost already is saved as well": make_case(
        chain(a=LINEAR),
        (
            *(FORWARD, BACKWARD, STEP, SaveState(), CorruptState()),
            *(SaveState(), LoadState(), CorruptState(), LoadState()),
        ),
        wrap=groups(""),
    ),
}


@pytest.mark.parametrize("name", PAST)
def test_it_passes(four_ranks: World, name: str) -> None:
    verdict = four_ranks.run(PAST[name])
    assert verdict.status is Status.PASS, verdict.findings[:2] or verdict.message


def test_an_unused_input_may_have_a_gradient_of_zeros(four_ranks: World) -> None:
    model = Block(
        children=(Child(name="a", module=LINEAR),),
        nodes=(use("h0", "a", "x"),),
        outputs=("h0",),
        inputs=("x", "y"),
    )
    inputs = float_inputs(3)
    spec = TensorSpec(size=2, requires_grad=True)
    case = make_case(
        model,
        (FORWARD, BACKWARD),
        wrap=groups(""),
        inputs=type(inputs)(batch=2, tensors=(*inputs.tensors, spec)),
        engines=("fully_shard",),
    )
    assert four_ranks.run(case).status is Status.PASS


COLLECTS_AT_THE_WORST_MOMENT = """
import gc
import weakref
from torch._dynamo.variables import builder

items = builder.enumerate_items_with_dict_position

def interrupted(table):
    for position, key, value in items(table):
        if isinstance(key, weakref.ref):
            gc.collect()
        yield position, key, value

builder.enumerate_items_with_dict_position = interrupted
gc.disable()
"""
"""What the garbage collector does by chance: it runs while Dynamo walks torch's table of wrapped
modules.
"""


def test_dynamo_does_not_see_garbage_of_an_earlier_run_go(tmp_path: Path) -> None:
    """Its own RuntimeError, "dictionary changed size during iteration", came one time in
    thousands.
    """
    preload = tmp_path / "collects.py"
    preload.write_text(COLLECTS_AT_THE_WORST_MOMENT)
    method = block(
        use("h0", "b", "x"),
        outputs=("h0",),
        b=msgspec.structs.replace(chain(a=LINEAR), method="go"),
    )
    case = make_case(
        method,
        (FORWARD,),
        mesh=1,
        wrap=groups("b"),
        compile="eager",
        engines=("fully_shard",),
    )
    with World(WorldConfig(size=1, preload=(str(preload),))) as world:
        world.start()
        verdict = world.run(case, deadline=60)
    assert verdict.status is Status.PASS, verdict.findings[:1] or verdict.message


REGRESSIONS = sorted((Path(__file__).parents[2] / "corpus" / "regressions").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_a_drawn_case_that_was_a_false_alarm_passes(four_ranks: World, path: Path) -> None:
    mended = OnMends(four_ranks, mends_for())
    assert judge(mended, decode(path.read_bytes())).status is Status.PASS

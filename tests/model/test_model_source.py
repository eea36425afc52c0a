"""The source that runs is the source the reproducer prints: it must say what the case says."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import torch
from cases import ROOT, chain, children, make_case
from stock_cases import STOCK, Stock

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Inputs, TensorSpec, Tie
from fuzzshard.case.graph import Alias, Block
from fuzzshard.engines.nested import map_tensors
from fuzzshard.model.build import build_model
from fuzzshard.model.expressions import class_name
from fuzzshard.model.source import model_source
from fuzzshard.model.values import named_ids, named_values
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.statements import MODULUS, seed_of

CPU = torch.device("cpu")


def build(case, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return build_model(case, CPU, dtype)


@pytest.mark.parametrize("stock", STOCK.values(), ids=STOCK.keys())
def test_a_model_has_the_parameters_and_outputs_that_were_inferred(stock: Stock) -> None:
    case = stock.case
    model, found = build(case), inferred(case)
    assert {fqn: tuple(p.shape) for fqn, p in model.named_parameters()} == dict(found.parameters)
    assert [fqn for fqn, _ in model.named_parameters()] == list(found.parameters)
    leading = (case.inputs.batch, case.inputs.seq) if case.inputs.seq else (case.inputs.batch,)
    args = [
        torch.zeros(leading, dtype=torch.long)
        if t.kind == "ids"
        else torch.zeros(*leading, t.size)
        for t in case.inputs.tensors
    ]
    outputs: list[torch.Tensor] = []
    map_tensors(lambda tensor: outputs.append(tensor) or tensor, model(*args))
    expected = [
        (*leading, *((value.patches,) if value.patches else ()), value.size)
        for value in found.output_values[ROOT]
    ]
    assert [tuple(output.shape) for output in outputs] == expected


def test_every_case_has_one_source() -> None:
    for stock in STOCK.values():
        model_source.cache_clear()
        before = model_source(stock.case)
        model_source.cache_clear()
        assert model_source(stock.case) == before


def test_the_source_of_a_model_reads_like_pytorch() -> None:
    case = make_case(chain(inner=chain(up=Linear(out=4, bias=False)), down=Linear(out=3)))
    assert model_source(case) == (
        "class Inner(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.up = nn.Linear(5, 4, bias=False)\n"
        "\n"
        "    def forward(self, x):\n"
        "        h0 = self.up(x)\n"
        "        return h0\n"
        "\n"
        "\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = Inner()\n"
        "        self.down = nn.Linear(4, 3)\n"
        "\n"
        "    def forward(self, x):\n"
        "        h0 = self.inner(x)\n"
        "        h1 = self.down(h0)\n"
        "        return h1\n"
    )


def test_printing_a_source_needs_no_torch() -> None:
    program = "import sys, fuzzshard.model.source; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_classes_are_named_after_their_paths() -> None:
    assert [class_name(path) for path in (ROOT, "block0", "encoder.block_a")] == [
        "Model",
        "Block0",
        "EncoderBlock_a",
    ]


def test_an_alias_is_the_same_module_and_a_tie_the_same_parameter() -> None:
    model = build(make_case(chain(a=Linear(out=5), b=Alias(target="a"))))
    assert model.get_submodule("a") is model.get_submodule("b")
    tied = make_case(
        chain(a=Linear(out=5), b=Linear(out=5)),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
    )
    model = build(tied)
    assert model.get_parameter("a.weight") is model.get_parameter("b.weight")
    assert model.get_parameter("a.bias") is not model.get_parameter("b.bias")


def test_a_block_without_children_is_a_class_too() -> None:
    empty = Block(children=(), nodes=(), outputs=("x",))
    case = make_case(Block(children=children(a=Linear(out=2), e=empty), nodes=(), outputs=("x",)))
    assert build(case)(torch.ones(2, 5)).shape == (2, 5)


def test_a_parameter_keeps_its_values_when_other_modules_go() -> None:
    both = build(make_case(chain(a=Linear(out=5), b=Linear(out=3))))
    alone = build(make_case(chain(b=Linear(out=3))))
    assert torch.equal(both.get_parameter("b.weight"), alone.get_parameter("b.weight"))


def test_another_seed_gives_other_values_and_the_same_seed_the_same() -> None:
    case = make_case()
    other = msgspec.structs.replace(case, seed=case.seed + 1)
    weights = [build(c).get_parameter("a.weight") for c in (case, case, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_dyadic_values_are_the_same_in_both_precisions() -> None:
    case = make_case(values="dyadic")
    single, double = build(case), build(case, torch.float64)
    for fqn in inferred(case).parameters:
        assert torch.equal(single.get_parameter(fqn).double(), double.get_parameter(fqn))


def test_gaussian_matrices_are_scaled_by_their_fan_in() -> None:
    case = make_case(
        chain(a=Linear(out=256)), inputs=Inputs(batch=2, tensors=(TensorSpec(size=256),)), wrap=()
    )
    assert build(case).get_parameter("a.weight").std().item() == pytest.approx(1 / 16, rel=0.05)


def test_buffers_start_as_torch_starts_them() -> None:
    model = build(make_case(chain(n=BatchNorm())))
    assert model.get_buffer("n.running_var").tolist() == [1.0] * 5


def test_values_that_are_apart_are_powers_of_two_once_in_each_row_of_a_matrix() -> None:
    weight = named_values("apart", (6, 2, 4), torch.bfloat16, 0)
    assert (weight != 0).sum(-1).eq(1).all()
    assert {*weight[weight != 0].tolist()} == {
        *named_values("apart", (9,), torch.half, 0).tolist()
    }
    ranks = [named_values("apart", (9, 4), torch.float16, 0, exponent=e) for e in (6, -6)]
    assert [{*rank.log2().flatten().tolist()} for rank in ranks] == [{6.0}, {-6.0}]
    assert not torch.equal((ranks[0] + ranks[1]).double(), ranks[0].double() + ranks[1])


def test_dyadic_values_are_halves_between_minus_two_and_two_without_zero() -> None:
    values = named_values("dyadic", (1000,), torch.float32, 3, "x")
    assert set(values.tolist()) == {-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0}


def test_ids_cover_their_range() -> None:
    assert set(named_ids(7, (1000,), 3, "x").tolist()) == set(range(7))


def test_a_name_gives_the_same_seed_in_every_process() -> None:
    assert seed_of(3, "a.weight") == int.from_bytes(b"3/a.weight", "big") % MODULUS == 734340092
    assert (
        len({seed_of(3, f"layer{i}.weight", rank) for i in range(100) for rank in range(8)}) == 800
    )

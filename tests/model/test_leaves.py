"""What a leaf says of itself, held against the module that it builds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from fuzzshard.parts.leaf import DrawingLeaf, Kind, Leaf, Value
from fuzzshard.parts.leaves import KINDS, LEAVES
from fuzzshard.parts.leaves.norms import GroupNorm
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.strategies.tape import ByteTape

WIDTH, OUT, SEQ = 12, 5, 4


def drawn(kind: Kind) -> Leaf:
    """The simplest leaf of a kind."""
    assert kind.draw is not None
    return kind.draw(DrawingLeaf(ByteTape(b""), WIDTH, OUT, (OUT,), exact=False))


def built(leaf: Leaf) -> nn.Module:
    """The module of a leaf."""
    names: dict[str, object] = {"torch": torch, "nn": nn}
    exec("".join(leaf.helpers), names)
    module = eval(leaf.constructor(WIDTH), names)
    assert isinstance(module, nn.Module)
    return module


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_module_has_the_parameters_and_returns_what_the_leaf_says(kind: Kind) -> None:
    leaf = drawn(kind)
    module = built(leaf)
    assert kind in [each for each in leaf.kinds if each.of(leaf, WIDTH)]
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == dict(
        leaf.parameters(WIDTH)
    )
    assert leaf.has_parameters == bool(leaf.parameters(WIDTH))
    assert (leaf.buffers != "none") == any(True for _ in module.buffers())
    value = leaf.example(Value(WIDTH))
    seq = 0 if kind.role == "images" else SEQ
    assert not [*leaf.misfits("a", value, seq)]
    shape = (2, seq) if seq else (2,)
    x = torch.randint(value.size, shape) if value.ids else torch.randn(*shape, value.size)
    second = seq and "channels" in leaf.takes
    result = module(x.transpose(1, 2) if second else x)
    result = result.transpose(1, 2) if second else result
    said = leaf.result(value)
    assert tuple(result.shape) == (*shape, *([said.patches] if said.patches else []), said.size)


def test_leaves_and_kinds_have_places_of_their_own() -> None:
    assert max(Counter(leaf.complexity for leaf in LEAVES).values()) == 1
    assert max(Counter(kind.place for kind in KINDS if kind.in_swarms).values()) == 1
    assert max(Counter(kind.name for kind in KINDS).values()) == 1


def test_what_a_leaf_is_made_of_has_its_parameters() -> None:
    for leaf in map(drawn, KINDS):
        if parts := leaf.apart(WIDTH):
            names = {f"{name}.{n}" for name, part in parts.items() for n in part.parameters(WIDTH)}
            assert names == set(leaf.parameters(WIDTH))


def test_a_running_sum_has_another_tensor_after_a_forward_in_training() -> None:
    for leaf in (RunningSum(), RunningSum(persistent=False)):
        module = built(leaf)
        before = module.get_buffer("running")
        x = torch.randn(3, SEQ, WIDTH, requires_grad=True)
        y = module(x)
        after = module.get_buffer("running")
        assert after is not before
        assert before.tolist() == [1.0] * WIDTH
        assert torch.equal(after, x.detach().flatten(0, 1).sum(0) * 0.125 + 0.5)
        assert torch.equal(y, x + after)
        assert ("running" in module.state_dict()) == leaf.persistent
        module.eval()(x)
        assert module.get_buffer("running") is after


def test_a_group_norm_of_one_value_in_a_group_needs_two_rows() -> None:
    leaf = GroupNorm(groups=4)
    for width, seq in ((4, 0), (4, 1), (4, 2), (8, 0)):
        module = nn.GroupNorm(leaf.groups, width)
        rows = leaf.least_rows(width, seq)
        module(torch.randn(rows, width, *([seq] if seq else [])))
        assert rows in (0, 2)
        if rows:
            with pytest.raises(ValueError, match="more than 1 value"):
                module(torch.randn(1, width, *([seq] if seq else [])))

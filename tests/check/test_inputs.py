"""The inputs of a module inside a model, on which it is trained alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fuzzshard.subject.steps import recorded_inputs
from fuzzshard.subject.subject import Variation


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.last = nn.Bilinear(2, 2, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x, input2=self.first(x))


def test_arguments_and_keywords_are_leaves_that_require_a_gradient_where_they_did() -> None:
    model, x = Model(), torch.ones(3, 2)
    recorded = recorded_inputs(model, "last", x)
    assert recorded is not None
    assert torch.equal(recorded.arguments[0], x)
    assert not recorded.arguments[0].requires_grad
    hidden = recorded.keywords["input2"]
    assert torch.equal(hidden, model.first(x))
    assert hidden.is_leaf
    assert hidden.requires_grad


def test_a_module_that_is_not_called_has_none() -> None:
    model = Model()
    assert recorded_inputs(model, "unused", torch.ones(3, 2)) is None


def test_names_are_those_within_the_module_that_is_cut_out() -> None:
    variation = Variation(only="layers.0", depth=1, lists=("layers",))
    assert variation.kept(("embed", "layers.0.up", "layers.0", "layers.1.up")) == ("up",)

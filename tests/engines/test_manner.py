"""What the reference does in the manner of an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fuzzshard.case.case import Optimizer
from fuzzshard.engines.reference.manner import Recomputed, join_inputs, make_states

CLASSES = {
    "asgd": torch.optim.ASGD,
    "adam": torch.optim.Adam,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
    "muon": torch.optim.Muon,
}


class Adds(nn.Module):
    def forward(self, used: torch.Tensor, *, beside: dict[str, Any]) -> torch.Tensor:
        return used * 2


def test_joined_inputs_have_gradients_of_zeros_where_nothing_uses_them() -> None:
    used, unused = (torch.ones(2, requires_grad=True) for _ in range(2))
    plain, joining = Adds(), Adds()
    joining.register_forward_pre_hook(join_inputs, with_kwargs=True)
    plain(used, beside={"y": [unused], "z": 3}).sum().backward()
    assert unused.grad is None
    joining(used, beside={"y": [unused], "z": 3}).sum().backward()
    assert unused.grad is not None
    assert torch.equal(unused.grad, torch.zeros(2))
    with torch.no_grad():
        assert joining(used, beside={}).grad_fn is None


@pytest.mark.parametrize("kind", CLASSES)
def test_states_are_made_as_they_are_before_a_first_step(kind: str) -> None:
    spec = Optimizer(kind=kind, lr=0.5, lr_scheduler="step_lr")
    held = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))]
    optimizer = CLASSES[kind](held, lr=0.5)
    make_states(optimizer, [held[0], nn.Parameter(torch.ones(1))], spec)
    assert held[1] not in optimizer.state
    states = optimizer.state[held[0]]
    assert states
    for name, state in states.items():
        initial = {"eta": 0.5, "mu": 1.0, "mu_product": 1.0}.get(name, 0.0)
        assert torch.equal(state, torch.full_like(state, initial)), name
    assert torch.equal(held[0].data, torch.ones(2, 3))
    states["step" if "step" in states else "momentum_buffer"].fill_(2)
    make_states(optimizer, held, spec)
    assert 2 in [int(state.max()) for state in states.values()]


def test_a_batch_is_counted_as_often_as_is_due() -> None:
    norm, rows = nn.BatchNorm1d(2), torch.randn(4, 2, requires_grad=True)
    model = lambda x: torch.utils.checkpoint.checkpoint(norm, x, use_reentrant=False)  # noqa: E731
    for due, counted in ((1, 1), (2, 2), (0, 1), (None, 2)):
        norm.reset_running_stats()
        counts = {} if due is None else {(3, "n.num_batches_tracked"): due}
        recomputed = Recomputed({"n": norm}, counts)
        out = model(rows)
        once = norm.running_mean.clone()
        out.sum().backward()
        twice = norm.running_mean.clone()
        recomputed.take_back(3)
        assert norm.num_batches_tracked.item() == counted
        assert torch.equal(norm.running_mean, once if counted == 1 else twice)

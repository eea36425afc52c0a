from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fuzzshard.engines.batch_norm_noise import cancelled_rows, cancels_rows


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(3))


def gradient(norm: nn.BatchNorm1d, x: torch.Tensor, *, noise: bool = False) -> torch.Tensor:
    """Of ``x``, where all rows are added up."""
    x = x.clone().requires_grad_()
    output = norm(x)
    if noise:
        output = cancelled_rows(norm, x, output, torch.Generator().manual_seed(1))
    output.sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(
    ("norm", "x", "expected"),
    [
        (nn.BatchNorm1d(5, eps=1e-30), rows(2), True),
        (nn.BatchNorm1d(5, eps=1e-30), rows(2).unsqueeze(2), True),
        (nn.BatchNorm1d(5, eps=1e-30), rows(4).view(2, 5, 2), False),
        (nn.BatchNorm1d(5, eps=1e-30), rows(3), False),
        (nn.BatchNorm1d(5, eps=1e-30).eval(), rows(2), False),
        (nn.BatchNorm1d(5, eps=1e-30, track_running_stats=False).eval(), rows(2), True),
    ],
)
def test_a_batch_norm_of_two_rows_passes_no_gradient_on(
    norm: nn.BatchNorm1d, x: torch.Tensor, expected: bool
) -> None:
    assert cancels_rows(norm, x) is expected
    passed = x.double().requires_grad_()
    (norm.double()(passed) * torch.linspace(1, 2, x.numel()).view_as(x)).sum().backward()
    assert passed.grad is not None
    assert bool(passed.grad.abs().max() < 1e-9) is expected


@pytest.mark.parametrize("affine", [True, False])
def test_what_such_a_batch_norm_passes_on_is_off_by_the_rounding_of_its_terms(affine: bool) -> None:
    norm = nn.BatchNorm1d(5, affine=affine)
    x = 3.0 + rows(2)
    exact, off = (gradient(copy.deepcopy(norm), x, noise=noise) for noise in (False, True))
    true = gradient(copy.deepcopy(norm).double(), x.double())
    moved = (off - exact).abs()
    assert bool(((exact - true).abs() <= moved).all())
    assert moved.max() < 1e-3

from __future__ import annotations

import copy

import pytest
import torch
from fuzzshard.engines.batch_norm_noise import cancelled_rows, cancels_rows
from torch import nn


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(3))


def gradient(norm: nn.BatchNorm1d, x: torch.Tensor, *, noise: bool = False, seed: int = 1) -> torch.Tensor:
    """Of ``x``, where all rows are added up."""
    x = x.clone().requires_grad_()
    output = norm(x)
    if noise:
        output = cancelled_rows(norm, x, output, torch.Generator().manual_seed(seed))
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(2, 5), (1, 5, 2)], ids=["rows", "positions"])
def test_neither_the_sum_of_the_two_rows_nor_their_difference_stays_as_it_was(
    shape: tuple[int, ...], seed: int
) -> None:
    norm = nn.BatchNorm1d(5).double()
    x = torch.stack((rows(1) + 3, rows(1) + 4)).double().view(2, 5)  # equally far from their mean
    x = x if len(shape) == 2 else x.T.reshape(shape)
    exact, off = (gradient(copy.deepcopy(norm), x, noise=noise, seed=seed) for noise in (False, True))
    first, second = (off - exact).transpose(0, 1).flatten(1).unbind(1)
    least = torch.maximum(first.abs(), second.abs()) / 8
    assert bool(((first + second).abs() > least).all())
    assert bool(((first - second).abs() > least).all())


def test_so_is_the_gradient_of_its_weight_where_rows_are_close_to_each_other() -> None:
    """A row that is a unit larger makes the mean round otherwise, and the two rows no longer cancel."""
    norm = nn.BatchNorm1d(1).double()
    x = torch.tensor([[1000.0], [1000.0]], dtype=torch.float64)
    x[1] += 2 * torch.finfo(x.dtype).eps * 512
    larger = x.clone()
    larger[1] += torch.finfo(x.dtype).eps * 512
    gradients = []
    for rows_of, noise in ((x, False), (larger, False), (x, True)):
        gradient(norm, rows_of, noise=noise)
        assert norm.weight.grad is not None
        gradients.append(norm.weight.grad.clone())
        norm.zero_grad()
    exact, moved, off = gradients
    assert exact == 0.0
    assert 0.0 < (moved - exact).abs() <= (off - exact).abs() < 1e-9

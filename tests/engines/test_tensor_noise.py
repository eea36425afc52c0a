from __future__ import annotations

import copy

import pytest
import torch
from fuzzshard.engines.tensor_noise import add_rounding, can_round, leaves_rounding_only, rounded_softmax
from torch import nn


def gradients(norm: nn.Module) -> dict[str, torch.Tensor]:
    """The output of ``norm`` and all gradients, of inputs that cancel altogether."""
    x = torch.tensor([[0.3], [-0.7]], requires_grad=True)
    out = norm(x)
    (out * torch.tensor([[1.1], [0.9]])).sum().backward()
    assert x.grad is not None
    return {"output": out.detach(), "input": x.grad} | {n: p.grad for n, p in norm.named_parameters()}


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (nn.LayerNorm(1), True),
        (nn.LayerNorm(2), True),
        (nn.LayerNorm(3), False),
        (nn.RMSNorm(1), True),
        (nn.RMSNorm(2), False),
        (nn.BatchNorm1d(1), False),
    ],
)
def test_a_norm_of_one_or_two_features_passes_no_gradient_on(norm: nn.Module, expected: bool) -> None:
    assert leaves_rounding_only(norm) is expected


@pytest.mark.parametrize("norm", [nn.LayerNorm(1), nn.RMSNorm(1)])
def test_what_such_a_norm_passes_on_is_off_by_a_rounding_of_its_terms(norm: nn.Module) -> None:
    plain, noisy = copy.deepcopy(norm), copy.deepcopy(norm)
    add_rounding(noisy, 1, input_gradient_only=True)
    exact, off = gradients(plain), gradients(noisy)
    moved = (off.pop("input") - exact.pop("input")).abs()
    assert moved.min() >= torch.finfo(torch.float32).eps / 2
    assert moved.max() < 1e-3
    assert all(torch.equal(off[name], exact[name]) for name in exact)


class Images(nn.Conv2d):
    """A convolution that makes images of rows, as those of a model do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.view(-1, 3, 6, 6))


@pytest.mark.parametrize(
    ("convolution", "shape"),
    [
        (nn.Conv1d(3, 5, 3, padding=1), (4, 3, 6)),
        (nn.Conv1d(1, 2, 3, padding=1, bias=False), (2, 1, 3)),
        (nn.Conv2d(3, 5, 2, stride=2), (4, 3, 6, 6)),
        (Images(3, 5, 2, stride=2), (4, 3 * 6 * 6)),
    ],
)
def test_a_convolution_is_off_by_what_its_sums_round(convolution: nn.Module, shape: tuple[int, ...]) -> None:
    assert can_round(convolution)
    noisy, twice = copy.deepcopy(convolution), copy.deepcopy(convolution).double()
    add_rounding(noisy, 1)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    found = []
    for module, argument in ((convolution, x), (noisy, x.clone()), (twice, x.double())):
        result = module(argument.requires_grad_())
        result.square().sum().backward()
        found.append([result.detach(), argument.grad, *(p.grad for p in module.parameters())])
    for exact, off, truth in zip(*found, strict=True):
        moved, rounding = (off - exact).abs().max(), (exact - truth).abs().max()
        assert rounding <= moved < 1e-4 * truth.abs().max()


@pytest.mark.parametrize("above", [0.0, 30.0])
def test_a_softmax_passes_on_the_rounding_of_what_it_subtracts(above: float) -> None:
    scores = torch.tensor([[0.0, above, 0.5], [above, -1.0, 0.25]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[3e6, 1e6, 2e6], [1e6, 5e6, 4e6]], dtype=torch.float64)
    exact, noisy = scores.softmax(-1), rounded_softmax(scores, -1, torch.Generator().manual_seed(1))
    assert torch.equal(exact, noisy)
    (of_exact,) = torch.autograd.grad((exact * weights).sum(), scores)
    (of_noisy,) = torch.autograd.grad((noisy * weights).sum(), scores)
    moved = (of_noisy - of_exact).abs().amax(-1)
    rounding = torch.finfo(torch.float64).eps * 1e6
    assert (moved >= rounding / 4).all()
    assert (moved <= 32 * rounding).all()

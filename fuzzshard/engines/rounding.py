"""What groups round parameters to before modules compute with them, and last bits that change to
measure what rounding does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from fuzzshard.analysis.dtypes import roundings
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.parts.statements import seed_of
from fuzzshard.program.run import execute

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""Rounds every element by itself; what is rounded already stays what it is."""


def rounding_functions(case: Case, found: Inferred) -> Mapping[str, Rounding]:
    """Return those of the parameters that have one, by name."""
    texts = roundings(case, found)
    functions = {
        text: execute([f"rounded = lambda p: {text}"], {})["rounded"] for text in {*texts.values()}
    }
    return {fqn: functions[text] for fqn, text in texts.items()}


def largest(tensor: torch.Tensor) -> float:
    """Return the largest magnitude of a finite element; 0 where there is none."""
    return largest_of_each([tensor])[0]


def largest_of_each(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Return :func:`largest` of each."""
    sizes = (t.detach().double().abs().nan_to_num(nan=0.0, posinf=0.0) for t in tensors)
    return numbers([size.max() if size.numel() else size.sum() for size in sizes])


def numbers(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Return what tensors of one element hold; a GPU is waited for once."""
    return torch.stack([s.to(scalars[0].device) for s in scalars]).tolist() if scalars else []


class Shake(NamedTuple):
    """By how much of itself every number changes that a model is trained on, up or down: chance
    decides, seeded by ``seed`` and the name of a tensor. ``by_operators``: what operators compute
    changes as well (:class:`MonteCarloArithmetic`).
    """

    size: float
    seed: int = 0
    by_operators: bool = False

    @torch.no_grad()
    def apply(self, tensor: torch.Tensor, name: object) -> None:
        """Changes a tensor in place."""
        if tensor.is_floating_point():
            tensor.mul_(1 + self.size * self._signs(tensor, name))

    def of_sum(self, tensor: torch.Tensor, name: object, *factors: float) -> torch.Tensor:
        """Return a tensor as if each of its elements were a sum of terms, the largest of which is
        the product of ``factors``.
        """
        return tensor + self.size * math.prod(factors) * self._signs(tensor, name)

    def _signs(self, tensor: torch.Tensor, name: object) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed_of(self.seed, name))
        return _signs(tensor, generator)


def _signs(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """As many of 1 and -1 as ``tensor`` has elements, by chance."""
    return (torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1).to(tensor)


_SUMS = re.compile(
    r"aten\.(_?log)?(cum)?(sum|sumexp|prod|mean|mm|mv|dot|bmm|addmm|addmv|baddbmm|std|var|std_mean"
    r"|var_mean|index_add|scatter_add|embedding_dense_backward|convolution(_backward)?"
    r"|\w*norm\w*|\w*softmax\w*|\w*loss\w*|_scaled_dot_product\w*)\."
)
"""Operators that add or multiply terms: what orders and parts make of them differs. All others are
computed element by element, or choose and move what is there, and their backward may look for it.
"""

_ATTENTION = re.compile(r"aten\._scaled_dot_product\w*attention(?!\w*backward)")
"""Its third argument are the values."""


class MonteCarloArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets operators round otherwise: what they add up changes by its last bit, up or down, as
    chance decides, seeded by ``shake``.

    Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic" (1997).
    A ring of attention puts parts together by their differences (``_SDPAMerger`` in
    torch/distributed/tensor/experimental/_context_parallel/_attention.py), so what attention
    returns is as exact as the largest value, although a softmax where one key counts passes the
    zeros of others on.
    """

    supports_higher_order_operators = True

    def __init__(self, shake: Shake) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed_of(*shake))

    @override
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(func, OpOverload) and _SUMS.match(str(func)):
            results = result if isinstance(result, tuple) else (result,)
            for value, returned in zip(results, func._schema.returns, strict=False):
                is_new = returned.alias_info is None or returned.alias_info.is_write
                if is_new and isinstance(value, torch.Tensor) and value.is_floating_point():
                    attends = value is results[0] and _ATTENTION.match(str(func))
                    self._round(value, largest(args[2]) if attends else None)
        return result

    def _round(self, value: torch.Tensor, size: float | None) -> None:
        """Changes each element by the last bit of ``size``; None: of its own, so that infinities
        stay.
        """
        change = torch.finfo(value.dtype).eps * _signs(value, self._generator)
        value.mul_(1 + change) if size is None else value.add_(change * size)

"""Training without dropout, where two precisions would draw other values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
ATTENTION = "scaled_dot_product_attention"


def draws_by_dtype(device: torch.device) -> bool:
    """Return whether a dropout on ``device`` draws other values in another dtype.

    A kernel of CUDA draws as many numbers in a go as its vectors have elements
    (``aten/src/ATen/native/cuda/Dropout.cu``).
    """
    return device.type == "cuda"


@contextlib.contextmanager
def without_dropout() -> Iterator[None]:
    """Have the functions of :mod:`torch.nn.functional` drop nothing; modules call these."""
    attention = getattr(functional, ATTENTION)
    with contextlib.ExitStack() as stack:
        for name in DROPOUTS:
            stack.enter_context(mock.patch.object(functional, name, _identity))
        stack.enter_context(mock.patch.object(functional, ATTENTION, _keeping_all(attention)))
        yield


def _identity(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input


def _keeping_all(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attend

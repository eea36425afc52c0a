"""What each kind of leaf owns and needs."""

from __future__ import annotations

from fuzzshard.case.graph import (
    MLP,
    Activation,
    Attention,
    BatchNorm,
    Conv1d,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Leaf,
    Linear,
    Module,
    RawParameter,
    RMSNorm,
)

Shape = tuple[int, ...]


def leaf_parameters(leaf: Leaf, width: int) -> dict[str, Shape]:
    """Names and shapes of the parameters of a leaf called with values of ``width`` features."""
    shapes: dict[str, Shape] = {}
    match leaf:
        case Linear(out=out):
            shapes = {"weight": (out, width), "bias": (out,)}
        case Conv1d(out=out):
            shapes = {"weight": (out, width, 3), "bias": (out,)}
        case Conv2d(out=out, channels=channels, kernel=kernel):
            shapes = {"weight": (out, channels, kernel, kernel), "bias": (out,)}
        case LayerNorm() | BatchNorm():
            shapes = {"weight": (width,), "bias": (width,)}
        case RMSNorm():
            shapes = {"weight": (width,)}
        case Embedding(vocab=vocab, dim=dim):
            shapes = {"weight": (vocab, dim)}
        case RawParameter(matrix=matrix):
            shapes = {"weight": (width, width) if matrix else (width,)}
        case MLP(hidden=hidden, bias=bias):
            up = leaf_parameters(Linear(out=hidden, bias=bias), width)
            down = leaf_parameters(Linear(out=width, bias=bias), hidden)
            shapes = {f"up.{k}": v for k, v in up.items()} | {f"down.{k}": v for k, v in down.items()}
        case Attention():
            shapes = {"qkv.weight": (3 * width, width), "proj.weight": (width, width)}
        case Dropout() | Activation():
            pass
    if isinstance(leaf, Linear | Conv1d | Conv2d | LayerNorm) and not leaf.bias:
        del shapes["bias"]
    return shapes


def needs_sequence(leaf: Module) -> bool:
    """Whether a leaf works along the sequence axis."""
    return isinstance(leaf, Conv1d | Attention)

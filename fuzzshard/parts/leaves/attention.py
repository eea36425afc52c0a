"""Causal self-attention, written out or by one kernel."""

from __future__ import annotations

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts import leaves
from fuzzshard.parts.leaf import DrawingLeaf, Kind, Leaf, Value
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import Shape

_ATTENTION = """
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        mask = torch.ones(x.shape[1], x.shape[1], device=x.device).triu(1).bool()
        out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).flatten(2))
"""


class Attention(Leaf, tag="attention", frozen=True, kw_only=True):
    """Causal self-attention of ``heads`` heads; needs ``Inputs.seq >= 1`` and a width that heads
    divide.
    """

    heads: int = 1

    complexity, noun, prefix = 19, "attention", "attn"
    takes = ("sequence",)
    helpers = (_ATTENTION,)
    kinds = (
        Kind(
            "attention",
            "self-attention",
            9,
            lambda d: Attention(heads=2 if d.width % 2 == 0 and d.tape.chance(50) else 1),
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"Attention({width}, {self.heads})"

    @override
    def text(self, width: int) -> str:
        return f"Attention({width}, heads={self.heads})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"qkv.weight": (3 * width, width), "proj.weight": (width, width)}

    @override
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        yield from super().misfits(path, value, seq)
        if self.heads < 1 or value.size % self.heads:
            yield f"{path!r}: {self.heads} heads do not divide width {value.size}", "change heads"

    @override
    def simpler(self) -> Attention:
        return Attention()

    @override
    def apart(self, width: int) -> dict[str, Leaf]:
        return {
            "qkv": leaves.affine(3 * width, bias=False),
            "proj": leaves.affine(width, bias=False),
        }


_FUSED_ATTENTION = """
class SDPA(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class FusedAttention(nn.Module):
    def __init__(self, dim, heads, head_dim):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.sdpa = SDPA()
        self.proj = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        return self.proj(self.sdpa(q, k, v).transpose(1, 2).flatten(2))
"""


def _draw(drawing: DrawingLeaf) -> FusedAttention:
    tape = drawing.tape
    return FusedAttention(heads=1 + tape.chance(40), head_dim=tape.pick((8, 8, 16, 4, 3)))


class FusedAttention(Leaf, tag="fused_attention", frozen=True, kw_only=True):
    """Causal self-attention of ``heads`` heads, each of ``head_dim`` features, by
    ``scaled_dot_product_attention``; needs ``Inputs.seq >= 1``.

    Heads have a width of their own, as kernels ask for multiples of 8 on CUDA.
    """

    heads: int = 1
    head_dim: int = 8

    complexity, noun, prefix = 22, "fused attention", "sdpa"
    sizes = ("head_dim",)
    takes = ("sequence",)
    inner = {"attention": "sdpa"}
    helpers = (_FUSED_ATTENTION,)
    kinds = (
        Kind(
            "fused_attention",
            "self-attention by scaled_dot_product_attention",
            draw=_draw,
            role="attention",
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"FusedAttention({width}, {self.heads}, {self.head_dim})"

    @override
    def text(self, width: int) -> str:
        return f"FusedAttention({width}, heads={self.heads}, head_dim={self.head_dim})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        inner = self.heads * self.head_dim
        return {"qkv.weight": (3 * inner, width), "proj.weight": (width, inner)}

    @override
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        yield from super().misfits(path, value, seq)
        if self.heads < 1 or self.head_dim < 1:
            yield f"{path!r} has no heads", "give it heads of some width"

    @override
    def lacks_backward(self, *, twice: bool, on_cuda: bool, in_evaluation: bool) -> str:
        kernels = "kernels of scaled_dot_product_attention have no backward of a backward"
        return kernels if twice else ""

    @override
    def simpler(self) -> FusedAttention:
        return replace(self, heads=1)

    @override
    def apart(self, width: int) -> dict[str, Leaf]:
        return {
            "qkv": leaves.affine(3 * self.heads * self.head_dim, bias=False),
            "proj": leaves.affine(width, bias=False),
        }

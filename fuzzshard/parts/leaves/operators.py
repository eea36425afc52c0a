"""Operators of ``torch`` one after another, on values that may be DTensors."""

from __future__ import annotations

from typing import NamedTuple

from typing_extensions import override

from fuzzshard.parts import leaves
from fuzzshard.parts.leaf import DrawingLeaf, Kind, Leaf, Value
from fuzzshard.parts.op import Reasons

_OPERATORS = """
class Operators(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, x):
        for function in self.functions:
            x = function(x)
        return x
"""


class _Expression(NamedTuple):
    """An expression of ``x``, of its shape, and what a reader calls it."""

    text: str
    meaning: str


EXPRESSIONS = {
    "numbers": _Expression("x * 2 + 1", "a product with a number, and a sum with one"),
    "mean": _Expression("x - x.mean({dim}, keepdim=True)", "a mean"),
    "sum": _Expression("x + (x.sum({dim}, keepdim=True) + 1)", "a sum with a number added"),
    "sum_without_dim": _Expression(
        "x * (x.sum({dim}) - 1).unsqueeze({dim})", "a sum that drops its dim"
    ),
    "softmax": _Expression("x.softmax({dim})", "a softmax"),
    "log_softmax": _Expression("x.log_softmax({dim})", "the logarithm of a softmax"),
    "logsumexp": _Expression("x - x.logsumexp({dim}, keepdim=True)", "a logsumexp"),
    "norm": _Expression("x / (x.norm(dim={dim}, keepdim=True) + 1)", "a norm"),
    "variance": _Expression("x * x.var({dim}, correction=0, keepdim=True)", "a variance"),
    "std": _Expression("x / (x.std({dim}, correction=0, keepdim=True) + 1)", "a deviation"),
    "product": _Expression("x + x.prod({dim}, keepdim=True)", "a product of values"),
    "amax": _Expression("x - x.amax({dim}, keepdim=True)", "a maximum"),
    "cumsum": _Expression("x + x.cumsum({dim})", "a cumulative sum"),
    "sort": _Expression("x + x.sort({dim}).values", "sorted values"),
    "cat": _Expression(
        "sum(torch.cat([x, x * 2], {dim}).chunk(2, {dim}))", "a cat, and all chunks of it"
    ),
    "chunk": _Expression(
        "x * 2 - torch.cat([x, x], {dim}).chunk(2, {dim})[1]", "one of two chunks"
    ),
    "stack": _Expression("torch.stack([x, x * -2], {dim}).sum({dim})", "a stack"),
    "split": _Expression(
        "x + sum(t.mean({dim}, keepdim=True) for t in x.split(1, {dim}))", "a split"
    ),
    "transpose": _Expression("x.transpose({dim}, 0).sin().transpose({dim}, 0) + x", "transposes"),
    "view": _Expression("x.unflatten(-1, (-1, 1)).tanh().flatten(-2) + x", "an unflatten"),
    "reshape": _Expression(
        "x.reshape(x.shape[::-1]).sin().reshape(x.shape) + x", "a reshape that cuts otherwise"
    ),
    "flatten": _Expression("x.flatten().cos().view_as(x) * x", "a flatten of all dims"),
    "squeeze": _Expression("x.unsqueeze({dim}).sigmoid().squeeze({dim}) * x", "an unsqueeze"),
    "expand": _Expression(
        "x * x.mean({dim}, keepdim=True).expand_as(x).contiguous()", "an expand"
    ),
    "narrow": _Expression("x - x.narrow({dim}, 0, 1)", "a slice"),
    "select": _Expression("x - x.select({dim}, -1).unsqueeze({dim})", "one index of a dim"),
    "flip": _Expression("x + x.flip({dim})", "a flip"),
    "roll": _Expression("x + x.roll(1, {dim}) * 2", "a roll"),
    "pad": _Expression("nn.functional.pad(x, (1, 1))[..., 1:-1] * x", "a pad"),
    "where": _Expression("torch.where(x > 0, x, x * 0.5)", "a where"),
    "masked_fill": _Expression("x.masked_fill(x > 0.5, 0.0) + x", "a masked_fill"),
    "layer_norm": _Expression("nn.functional.layer_norm(x, x.shape[-1:])", "a layer norm"),
    "clamp": _Expression("x.clamp(-0.5, 0.5) + x", "a clamp"),
    "lerp": _Expression("torch.lerp(x, -x, 0.25)", "a lerp"),
    "normalize": _Expression("nn.functional.normalize(x, dim={dim}, eps=1.0)", "a normalize"),
    "minimum": _Expression("torch.minimum(x, x.mean({dim}, keepdim=True))", "a minimum"),
    "topk": _Expression("x - x.topk(1, {dim}).values", "the largest values"),
    "gather": _Expression("x + x.gather({dim}, x.argsort({dim}))", "a gather"),
    "cross_entropy": _Expression(
        'x - nn.functional.cross_entropy(x, x.argmax(1), reduction="none").unsqueeze(1)',
        "a cross entropy",
    ),
    "glu": _Expression("nn.functional.glu(torch.cat([x, x], {dim}), {dim})", "a gated unit"),
    "silu": _Expression("nn.functional.silu(x)", "a SiLU"),
    "addcmul": _Expression("torch.addcmul(x, x, x, value=0.5)", "an addcmul"),
    "in_place": _Expression("x.clone().mul_(2).add_(x)", "operators that work in place"),
}
"""By name, expressions whose rows depend on no other row of a batch."""


def _draw(drawing: DrawingLeaf) -> Operators:
    pick = drawing.tape.pick
    names = tuple(EXPRESSIONS)
    dims = (-1, 1, -2, 2) if drawing.sequence else (-1, 1)
    count = pick((2, 4, 6, 8))
    functions = tuple((pick(names), pick(dims)) for _ in range(count))
    return Operators(functions=functions, both=pick((False, True)))


def _kind(name: str, expression: _Expression) -> Kind:
    return Kind(
        f"operator_{name}",
        expression.meaning,
        of=lambda leaf, width: name in dict(leaf.functions),
    )


class Operators(Leaf, tag="operators", frozen=True, kw_only=True):
    """A module without parameters that calls ``functions`` one after another: names of
    ``EXPRESSIONS``, and any dim of the value but its first. If ``both``, each is called along two
    dims of one value: what is remembered of the first call may be wrong of the second.
    """

    functions: tuple[tuple[str, int], ...] = (("numbers", -1),)
    both: bool = False

    complexity, noun, prefix = 7, "operators", "ops"
    has_parameters = False
    styles = ("dtensor",)
    helpers = (_OPERATORS,)
    kinds = (
        Kind("operators", "operators one after another", draw=_draw, role="operators"),
        Kind(
            "operators_both",
            "operators along two dims of one value",
            of=lambda leaf, width: leaf.both,
        ),
        *(_kind(name, expression) for name, expression in EXPRESSIONS.items()),
    )

    @override
    def constructor(self, width: int) -> str:
        texts = (self._function(name, dim) for name, dim in self.functions)
        return f"Operators({', '.join(f'lambda x: {text}' for text in texts)})"

    def _function(self, name: str, dim: int) -> str:
        """Return the expression along ``dim``; if ``both``, added to that along ``-dim``, which is
        the other one of the last two of three dims.
        """
        first, second = (EXPRESSIONS[name].text.format(dim=along) for along in (dim, -dim))
        return f"({first}) + ({second})" if self.both and first != second else first

    @override
    def text(self, width: int) -> str:
        along = " along two dims" if self.both else ""
        return f"operators({', '.join(name for name, _ in self.functions)}){along}"

    @override
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        yield from super().misfits(path, value, seq)
        dims = value.dims(seq)
        for name, dim in self.functions:
            if name not in EXPRESSIONS:
                yield f"{path!r} has no operator {name!r}", f"use one of {', '.join(EXPRESSIONS)}"
            if dim % dims == 0 or not -dims < dim < dims:
                yield f"{path!r} works along dim {dim} of {dims}", "use -1"

    @override
    def simpler(self) -> Leaf:
        return leaves.SIMPLEST

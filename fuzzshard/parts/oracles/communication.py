"""What ``fully_shard`` communicates: :mod:`fuzzshard.oracles.communication` says what is due."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from typing_extensions import override

from fuzzshard.parts import oracle

GATHERS = "all-gathers"
SUMS = "sums over tensor-parallel ranks"
KINDS = {
    "all_gather": GATHERS,
    "reduce_scatter": "reduce-scatters",
    "all_reduce": "all-reduces",
}
"""What findings are about, by the kind of a collective."""
ENTRY_POINTS = {
    GATHERS: ("all_gather_into_tensor", "all_gather_single"),
    "reduce-scatters": ("reduce_scatter_tensor", "reduce_scatter_single"),
    "all-reduces": ("all_reduce",),
}
"""The functions of ``torch.distributed`` that do it."""


def extent_of(name: str) -> Callable[[Iterable[int]], int]:
    """Return which of its tensors tells the size of a collective: the gathered, or the scattered
    one.
    """
    return max if name == GATHERS else min


_RECORD = """
# functions of torch.distributed are replaced by ones that also note the call
calls = []


def recorded(collective):
    def call(*args, **kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        calls.append(({size}(t.numel() for t in tensors), str(tensors[0].dtype)[6:]))
        return collective(*args, **kwargs)

    return call


for name in {names}:
    if hasattr(dist, name):
        setattr(dist, name, recorded(getattr(dist, name)))
"""

_RECORD_SUMS = """
# what DTensors add up while fully_shard reduces is noted
calls, reducing = [], []


def recorded(all_reduce):
    def call(tensor, *args, **kwargs):
        if reducing:
            calls.append((tensor.numel(), str(tensor.dtype)[6:]))
        return all_reduce(tensor, *args, **kwargs)

    return call


def noted(post_backward):
    def call(group, *args):
        reducing.append(group)
        result = post_backward(group, *args)
        reducing.pop()
        return result

    return call


functional = dist._functional_collectives
functional.all_reduce = recorded(functional.all_reduce)
FSDPParamGroup.post_backward = noted(FSDPParamGroup.post_backward)
"""


class AtMost(NamedTuple):
    """So many collectives of one op, or fewer."""

    number: int

    def __str__(self) -> str:
        return f"at most {self.number}"

    @property
    def right(self) -> str:
        """Write what a script asserts of its ``calls``."""
        return f"len(calls) <= {self.number}"


class Elements(NamedTuple):
    """So many elements in all collectives of one op."""

    fewest: int
    most: int

    def __str__(self) -> str:
        range_of = "" if self.fewest == self.most else f"{self.fewest} to "
        return f"{range_of}{self.most} elements"

    @property
    def right(self) -> str:
        """Write what a script asserts of its ``calls``."""
        total = "sum(size for size, _ in calls)"
        if self.fewest == self.most:
            return f"{total} == {self.most}"
        return f"{self.fewest} <= {total} <= {self.most}"


class Sizes(NamedTuple):
    """Collectives of so many elements, one after the other."""

    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"of {', '.join(map(str, self.sizes))} elements"

    @property
    def right(self) -> str:
        """Write what a script asserts of its ``calls``."""
        return f"[size for size, _ in calls] == {list(self.sizes)}"


class Dtypes(NamedTuple):
    """Collectives in these dtypes."""

    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        return " and ".join(self.dtypes)

    @property
    def right(self) -> str:
        """Write what a script asserts of its ``calls``."""
        return f"{{dtype for _, dtype in calls}} <= {{{', '.join(map(repr, self.dtypes))}}}"


def read(text: str) -> AtMost | Elements | Sizes | Dtypes:
    """Return what has this text in a finding; earlier ones have a number or a range of them."""
    if number := re.fullmatch(r"(?:at most |\d+ to )?(\d+)", text):
        return AtMost(int(number[1]))
    if number := re.fullmatch(r"(?:(\d+) to )?(\d+) elements", text):
        return Elements(int(number[1] or number[2]), int(number[2]))
    if re.fullmatch(r"of [\d, ]* elements", text):
        return Sizes(tuple(map(int, re.findall(r"\d+", text))))
    return Dtypes(tuple(text.split(" and ")))


class Communication(oracle.Invariant):
    """What ``fully_shard`` gathers and reduces.

    A group gathers its parameters once, and again only after something has sharded them. A
    backward reduces each gradient that has arrived once, where synchronisation is on, in the dtype
    that its policy says; sums of gradients over the tensor-parallel axis have that dtype, too.
    Equal iterations communicate alike.

    It cannot see what was sent, only how much, and not when.
    """

    name = "communication"
    place = 170
    rests_on = "collectives"
    title = "{name} are {observed} where {expected} are due"

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        if scope.assertion.name == SUMS:
            return _RECORD_SUMS.strip().splitlines()
        source = _RECORD.replace("{size}", extent_of(scope.assertion.name).__name__)
        source = source.replace("{names}", str(ENTRY_POINTS[scope.assertion.name]))
        return source.strip().splitlines()

    @override
    def around(self, scope: oracle.Scope, lines: list[str]) -> list[str]:
        assertion = scope.assertion
        text = f"rank {{rank}}: expected {assertion.expected} {assertion.name}, observed {{calls}}"
        right = read(assertion.expected).right
        return ["calls.clear()", *lines, f'text = f"{text}"', f"assert {right}, text"]

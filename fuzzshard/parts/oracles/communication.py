"""What ``fully_shard`` communicates: :mod:`fuzzshard.oracles.communication` says what is due."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from typing_extensions import override

from fuzzshard.parts import oracle

GATHERS = "all-gathers"
SUMS = "sums over tensor-parallel ranks"
ENTRY_POINTS = {
    GATHERS: ("all_gather_into_tensor", "all_gather_single"),
    "reduce-scatters": ("reduce_scatter_tensor", "reduce_scatter_single"),
    "all-reduces": ("all_reduce",),
}
"""What findings are about, and the functions of ``torch.distributed`` that do it."""

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


class Number(NamedTuple):
    """So many collectives of one op."""

    fewest: int
    most: int

    def __str__(self) -> str:
        return str(self.fewest) if self.fewest == self.most else f"{self.fewest} to {self.most}"

    def right(self, name: str) -> str:
        """Write what a script asserts of its ``calls``."""
        if self.fewest == self.most:
            return f"len(calls) == {self.most}"
        return f"{self.fewest} <= len(calls) <= {self.most}"


class Sizes(NamedTuple):
    """Collectives of so many elements."""

    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"of {', '.join(map(str, self.sizes))} elements"

    def right(self, name: str) -> str:
        """Write what a script asserts of its ``calls``."""
        if name == GATHERS:
            return f"{{size for size, _ in calls}} <= {set(self.sizes)}"
        return f"sorted(size for size, _ in calls) == {list(self.sizes)}"


class Dtypes(NamedTuple):
    """Collectives in these dtypes."""

    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        return " and ".join(self.dtypes)

    def right(self, name: str) -> str:
        """Write what a script asserts of its ``calls``."""
        return f"{{dtype for _, dtype in calls}} == {set(self.dtypes)}"


def of_sizes(sizes: Iterable[int | None]) -> Sizes:
    """Return those sizes that are known."""
    return Sizes(tuple(sorted(size for size in sizes if size is not None)))


def read(text: str) -> Number | Sizes | Dtypes:
    """Return what has this text in a finding."""
    if number := re.fullmatch(r"(\d+)(?: to (\d+))?", text):
        return Number(int(number[1]), int(number[2] or number[1]))
    if re.fullmatch(r"of [\d, ]* elements", text):
        return Sizes(tuple(map(int, re.findall(r"\d+", text))))
    return Dtypes(tuple(text.split(" and ")))


class Communication(oracle.Predicted):
    """The number, sizes and dtypes of the collectives that ``fully_shard`` issues in each op.

    What is due follows from the documentation: a group is gathered where it is used and not
    unsharded, and reduced once for each time its gradients are complete.

    Sums of gradients over the tensor-parallel axis have the ``reduce_dtype`` of their group, too.

    It cannot see what was sent, only how much; and the number of all-gathers in backward is a
    range, as prefetching may guess wrong.
    """

    name = "communication"
    place = 170
    rests_on = "collectives"
    title = "{name} are {observed} where {expected} are due"

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        if scope.aim.name == SUMS:
            return _RECORD_SUMS.strip().splitlines()
        size = "max" if scope.aim.name == GATHERS else "min"
        source = _RECORD.replace("{size}", size)
        source = source.replace("{names}", str(ENTRY_POINTS[scope.aim.name]))
        return source.strip().splitlines()

    @override
    def around(self, aim: oracle.Aim, lines: list[str]) -> list[str]:
        text = f"rank {{rank}}: expected {aim.expected} {aim.name}, observed {{calls}}"
        right = read(aim.expected).right(aim.name)
        return ["calls.clear()", *lines, f'text = f"{text}"', f"assert {right}, text"]

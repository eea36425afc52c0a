"""Accesses to one memory that nothing orders: :mod:`fuzzshard.oracles.race` finds them."""

from __future__ import annotations

import re

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle

_EARLIER = re.compile(
    r", and before ([\w.]+) (?:reads|writes) .* on (?:stream \d+|the default stream) "
    r"\((?:(torch/distributed/[\w/]+\.py):(\d+) in )?[^()]*\)"
)
"""What a finding says of the access that comes first: operator, file and line."""

_SLOW = """
class Slow(TorchDispatchMode):
    \"""The stream sleeps before an operator that is called where that is said.\"""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        if function.namespace == "fsdp":  # calls others
            with self:
                keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
                return function.redispatch(keys, *args, **(kwargs or {{}}))
        if str(function) == "{operator}" and is_here():
            torch.cuda._sleep(500_000_000)
        return function(*args, **(kwargs or {{}}))


def is_here():
    frames = [(f.filename.replace("\\\\", "/"), f.lineno) for f in traceback.extract_stack()]
    {condition}


print("{text}")
if device == "cpu":
    print("this needs CUDA")
    sys.exit()
"""


class Race(oracle.Oracle):
    """Two accesses to the same memory, one of them a write, of which neither waits for the other.

    Kernels on two streams, or a kernel and the host, may come in either order; memory that the
    caching allocator hands out again is the same memory. On the CPU ``fully_shard`` runs over
    streams that exist in Python only. Scripts train twice on CUDA, the second time with a delay of
    the access that comes first.

    It cannot see what kernels of no operator access, numpy, or other ranks, and it takes the
    communication of one process group to be in order, as NCCL does it.
    """

    name = "race"
    place = 165
    tells_apart = True
    needs_finding = True
    rests_on = "streams"
    title = "{name}: {observed}, which nothing orders"
    basis = "one of two accesses to the same memory waits for the other if one of them writes."

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        return assertion.but(kind="alone", observed=finding.observed)

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        told = _EARLIER.search(scope.assertion.observed)
        if told is None:
            raise UsageError("no script delays the host or the allocator", "replay the case")
        operator, file, line = told.groups()
        condition = f'return any(f.endswith("{file}") and n == {line} for f, n in frames)'
        if not file:
            condition = 'return not any("torch/distributed/" in file for file, _ in frames)'
        text = scope.assertion.observed
        return _SLOW.format(operator=operator, condition=condition, text=text).splitlines()

    @override
    def within(self, scope: oracle.Scope, built: list[str], lines: list[str]) -> list[str]:
        """Train twice, the second time with a delay of the access that comes first."""
        run = [
            *built,
            "with slow:",
            *(f"    {line}" if line else "" for line in lines),
            f"params = {scope.called}.parameters()",
            "tensors = [t for p in params for t in (p, p.grad) if t is not None]",
            "tensors = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]",
            "results.append([(1 * t.detach()).cpu() for t in tensors])  # plain ones",
        ]
        return [
            "results = []",
            "for slow in (contextlib.nullcontext(), Slow()):",
            *(f"    {line}" if line else "" for line in run),
        ]

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        return [
            "for expected, observed in zip(*results):",
            "    torch.testing.assert_close(observed, expected, rtol=0, atol=0, equal_nan=True)",
        ]

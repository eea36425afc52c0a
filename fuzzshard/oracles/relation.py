"""The relation rung: ``fully_shard`` against itself, with an aspect changed that must not change a
value.

Whether parameters stay unsharded after forward, are gathered ahead or recomputed is a choice of
time against memory: every value must have the same bits, on any number of ranks. So must it on an
HSDP mesh of one replica. Another wrap plan puts gradients elsewhere in the buffers that are
reduced, and by their place there gloo and NCCL choose in which order they add the ranks' terms
(measured on gloo: four ranks differ).
"""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.oracles.bound import Bound, half_of_the_digits
from fuzzshard.oracles.compare import Difference, differences, rank_of, same_bits
from fuzzshard.oracles.judge import tensor_findings
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding


def regroups_sums(case: Case) -> bool:
    """Whether the two runs may round otherwise, and are to be compared in float64 where they do.

    Another plan groups sums otherwise. In a recomputation the inputs of a module may pass through
    no autograd function (``_pre_forward`` in torch/distributed/fsdp/_fully_shard/_fsdp_state.py),
    which keep the strides that they have, and by these a convolution chooses its kernel. A step
    that combines the elements of a matrix multiplies its shards as the mesh has them.
    """
    of_steps = case.relation == "mesh" and case.optimizer.does("combines_elements")
    return of_steps or case.relation in ("plan", "checkpoint")


def relation_differences(trace: Trace, other: Trace) -> list[Difference]:
    """Where the bits of a run are not those of ``other``, the run of the case's variant."""
    found = []
    for key, observation in trace.tensors.items():
        if not key.rule.in_relations or key not in other.tensors:
            continue
        observed, expected = observation.tensor, other.tensors[key].tensor
        if observed is None or expected is None:
            if observed is expected:
                continue
        elif same_bits(observed, expected):
            continue
        found.append(Difference(key, observed, expected, observation.pieces))
    return sorted(found, key=lambda d: rank_of(d.key))


def not_documented(
    case: Case, found: list[Difference], references: tuple[Trace, Trace]
) -> list[Difference]:
    """What the documents of both runs do not make differ: the reference, trained in the manner of
    either, has the same bits there, or as good as the same where the two may round otherwise.
    """
    one, other = references
    bound = _bound(case, other) if regroups_sums(case) else None
    apart = differences(other, one)
    documented = {d.key for d in apart if bound is None or not bound.excess(d)[0]}
    return [d for d in found if d.key not in documented]


def relation_findings(
    case: Case,
    trace: Trace,
    other: Trace,
    found: list[Difference],
    rank: int,
    *,
    rounds: bool = False,
) -> list[Finding]:
    """What is wrong of the differences of a run from ``other``; if it ``rounds`` otherwise, what
    rounding does not explain.
    """
    bound = _bound(case, other) if rounds else None
    return tensor_findings(trace.engine, found, "relation", bound, lambda _: (), rank)


def _bound(case: Case, other: Trace) -> Bound:
    return Bound(case, other, last_bits=half_of_the_digits(case))

"""The negative control of resuming: what a load restores must have been lost before."""

from __future__ import annotations

import torch

from fuzzshard.case.case import Case
from fuzzshard.oracles.compare import same_bits
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.oracles.resume import Resume
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding


def uncorrupted(case: Case, reference: Trace, rank: int) -> list[Finding]:
    """Return a finding for each corruption that left the reference with every saved parameter: to
    load them again would prove nothing.
    """
    found = []
    saved: dict[str, torch.Tensor] = {}
    corrupted: dict[str, torch.Tensor] = {}
    proves = True
    for index, op in enumerate(case.schedule):
        if op.via:
            saved = _parameters(reference, index, saved=True)
            proves = not _equal(corrupted, saved)  # what is lost already may be saved as well
        elif "corrupted" in op.looks:
            corrupted = _parameters(reference, index, saved=False)
            if proves and _equal(corrupted, saved):
                found.append(
                    Finding(
                        oracle=Resume.name,
                        engine=REFERENCE.name,
                        observed="the parameters that were saved",
                        expected="others, after they were corrupted",
                        op=index,
                        rank=rank,
                    )
                )
    return found


def _equal(corrupted: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> bool:
    return bool(corrupted) and all(same_bits(t, saved[name]) for name, t in corrupted.items())


def _parameters(trace: Trace, index: int, *, saved: bool) -> dict[str, torch.Tensor]:
    """What was recorded of every parameter after the op at ``index``: ``saved`` or corrupted."""
    return {
        key.name: observation.tensor
        for key, observation in trace.tensors.items()
        if key.op == index
        and (key.rule.is_weight if saved else key.rule.is_state)
        and observation.tensor is not None
    }

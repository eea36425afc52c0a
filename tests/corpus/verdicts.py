from __future__ import annotations

from fuzzshard.verdict import Finding, Status, Verdict


def divergence(oracle: str = "gradient") -> Verdict:
    finding = Finding(oracle=oracle, engine="fully_shard", observed="1", expected="2")
    return Verdict(status=Status.DIVERGENCE, findings=(finding,))

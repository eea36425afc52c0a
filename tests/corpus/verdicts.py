from __future__ import annotations

from fuzzshard.verdict import Finding, Status, Verdict


def divergence(oracle: str = "gradient") -> Verdict:
    finding = Finding(oracle=oracle, engine="fully_shard", observed="1", expected="2")
    return Verdict(status=Status.DIVERGENCE, findings=(finding,))


def crash(detail: str, message: str, engine: str = "fully_shard") -> Verdict:
    """A crash in the function that ``detail`` names: ``"IndexError in pre_backward"``."""
    observed = f"{detail.partition(' ')[0]}: {message}"
    finding = Finding(
        oracle="exception", engine=engine, observed=observed, expected="", detail=detail
    )
    return Verdict(status=Status.CRASH, findings=(finding,))

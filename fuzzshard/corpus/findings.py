"""Whether the findings of an entry can be meant of its case: they decide what its scripts look
at.
"""

from __future__ import annotations

import re

from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.limits import LARGEST_DIM
from fuzzshard.errors import InvalidCase, UsageError
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.names import check_name
from fuzzshard.parts.oracle import NOT_REFUSED
from fuzzshard.parts.oracles import named
from fuzzshard.verdict import Finding


def check_finding(finding: Finding, case: Case) -> None:
    """Raises :class:`InvalidCase` for a finding that names what ``case`` cannot have."""
    if finding.engine not in ("", REFERENCE.name, *ALL_ENGINES):
        raise InvalidCase(f"a finding accuses {finding.engine!r}, which is no engine", _REMEDY)
    if not -1 <= finding.op < len(case.schedule):
        raise InvalidCase(f"a finding is at op {finding.op}, which is not there", _REMEDY)
    if not 0 <= finding.rank < LARGEST_DIM:  # a world may be larger than the mesh
        raise InvalidCase(f"a finding is of rank {finding.rank}", _REMEDY)
    try:
        named(finding.oracle)
        if finding.detail != NOT_REFUSED:
            check_name(finding.name)
        else:
            re.compile(finding.name)
    except (UsageError, re.error) as error:
        problem = error.problem if isinstance(error, UsageError) else f"a pattern: {error}"
        raise InvalidCase(f"a finding names {problem}", _REMEDY) from None


_REMEDY = "restore the file from its campaign"

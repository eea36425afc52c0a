"""Assembles the script from the model's source, the helpers it needs, one program and one verdict."""

from __future__ import annotations

import importlib.metadata

from fuzzshard.case.case import Case
from fuzzshard.reproducer.aim import Aim, aim_of
from fuzzshard.reproducer.alone import Alone
from fuzzshard.reproducer.compare import Compare, Relate
from fuzzshard.reproducer.imports import import_block
from fuzzshard.reproducer.story import story
from fuzzshard.reproducer.writer import Writer
from fuzzshard.verdict import Finding


def script(
    case: Case, *, signature: str = "", finding: Finding | None = None, torch_version: str = ""
) -> str:
    """The text of a standalone ``repro.py``: exits 1 where ``case`` shows ``finding``, else 0.

    With a finding it looks at the very tensors and the op that the finding names, and requires what the
    finding's rung requires. From a ``signature`` alone it looks at everything of that kind; with
    neither it compares all tensors. ``torch_version`` is that of the finding, by default the installed
    one. Raises :class:`UsageError` where nothing but replaying the case shows the finding.
    """
    aim = aim_of(case, signature, finding)
    version = torch_version or importlib.metadata.version("torch")
    writer = _writer(case, aim)
    header = story(aim, signature, finding, case.mesh.size, version)
    body = "\n\n\n".join([*writer.definitions(), writer.main()])
    return f"{header}\n{import_block(body)}\n\n\n{body}\n"


def _writer(case: Case, aim: Aim) -> Writer:
    if not aim.trains_reference:
        return Alone(case, aim)
    return Compare(case, aim) if aim.kind == "compare" else Relate(case, aim)

"""``fuzzshard repro``: a case as a standalone script."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fuzzshard.commands.options import Preload
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.entry import read_entry
from fuzzshard.corpus.store import only_case
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING


def repro(
    path: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    check: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    preload: Preload = (),
) -> int:
    """Print a script that shows the finding and needs nothing but torch.

    For example:
      fuzzshard repro corpus/findings/NAME -o bug.py
      fuzzshard repro corpus/findings/NAME --check

    Parameters
    ----------
    path
        An entry or a case file.
    output
        Where to write the script; by default it is printed.
    check
        Run the script on the ranks it needs. Exit code 1: it shows the finding; 0: it does not.
    preload
        For --check, a Python file that every rank runs first; repeat it for several.
    """
    from fuzzshard import reproducer

    entry = read_entry(only_case(path))
    script = reproducer.script(
        entry.case, signature=entry.signature, finding=next(iter(entry.findings), None)
    )
    if output is not None:
        write_atomic(output, script.encode())
    elif not check:
        print(script, end="")
    if not check:
        return EXIT_CLEAN
    with tempfile.TemporaryDirectory(prefix="fuzzshard-repro-") as folder:
        target = Path(folder) / "repro.py"
        target.write_text(script)
        result = reproducer.check(target, entry.case.mesh.size, preload=preload)
    print(result.output.rstrip())
    print(f"the script {'shows the finding' if result.fails else 'does not show the finding'}")
    return EXIT_FINDING if result.fails else EXIT_CLEAN

"""``fuzzshard repro``: a case as a standalone script."""

from __future__ import annotations

from pathlib import Path

from fuzzshard import reproducer
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.scripts import scripts_of, shown_by
from fuzzshard.corpus.store import only_case, saved_script
from fuzzshard.drafts.reduced import reduced_script
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE
from fuzzshard.options import Flag, Output, Preload
from fuzzshard.report.busy import busy
from fuzzshard.report.stages import counted
from fuzzshard.reproducer.check import ranks_needed
from fuzzshard.reproducer.shown import Shown, last_error
from fuzzshard.temporary import TemporaryFolder

_EXIT = {Shown.YES: EXIT_FINDING, Shown.NO: EXIT_CLEAN, Shown.OTHERWISE: EXIT_INCONCLUSIVE}


def repro(
    path: Path,
    /,
    *,
    output: Output = None,
    check: Flag = False,
    anew: Flag = False,
    preload: Preload = (),
) -> int:
    """Print a script that shows the finding with torch alone.

    For example:
      fuzzshard repro corpus/findings/NAME -o bug.py
      fuzzshard repro corpus/findings/NAME --check

    Parameters
    ----------
    path
        An entry or a case file.
    output
        The file to write the script to. By default it is printed.
    check
        Run the script on as many ranks as it needs. Exit code 1: it shows the finding; 0: it does
        not; 3: it fails for another reason.
    anew
        Generate the script again instead of printing the one that is saved with the entry. With
        --check, the first variant that shows the finding, without what it does not need.
    """
    file = only_case(path)
    entry = read_entry(file)
    saved = None if anew else saved_script(file)
    offered = list(scripts_of(entry, reproducer.scripts)) if saved is None else [saved]
    script, verdict = offered[0], None
    if check:
        for script in offered:
            verdict = _run(script, entry, preload)
            if verdict is Shown.YES:
                break
        if anew and verdict is Shown.YES:
            with busy("reducing the script") as line:
                script = reduced_script(entry, script, preload=preload, now=line.now)
    if output is not None:
        write_atomic(output, script.encode())
    elif not check:
        print(script, end="")
    return EXIT_CLEAN if verdict is None else _EXIT[verdict]


def _run(script: str, entry: CorpusEntry, preload: Preload) -> Shown:
    ranks = ranks_needed(script)
    with TemporaryFolder() as folder:
        target = folder / "repro.py"
        target.write_text(script)
        with busy(f"running the script on {counted(ranks, 'rank')}"):
            result = reproducer.check(target, ranks, preload=preload)
    verdict = shown_by(result, entry)
    print(result.output.rstrip())
    why = f": {last_error(result.output)}" if verdict is Shown.OTHERWISE else ""
    print(f"the script {verdict}{why}")
    return verdict

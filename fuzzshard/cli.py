"""The command line: which commands there are, and how errors become one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from fuzzshard import __version__
from fuzzshard.commands.mistakes import in_words, whole_numbers
from fuzzshard.commands.usage import Command, add_command, group_app
from fuzzshard.errors import EXIT_INFRA, EXIT_INTERRUPTED, EXIT_USAGE, FuzzshardError
from fuzzshard.temporary import cache_folder

EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell says of any program whose reader went away."""

HELP = """\
Fuzz PyTorch's data-parallel training: draw random training runs, train each
with fully_shard, DDP, FSDP1 and as a plain model on real ranks, and report
every difference that floating point cannot explain.
"""

EXAMPLES = """\
Examples:
  fuzzshard run --max-time 10m           fuzz for ten minutes
  fuzzshard check train.py:build --inputs train.py:batch
                                         does your model train as it should?
  fuzzshard status corpus                how far is it, and what did it find?
  fuzzshard replay corpus                are the saved findings still there?
  fuzzshard explain corpus               which known bugs of torch are they?
  fuzzshard corpus list                  what is saved
  fuzzshard show corpus/findings/NAME    one finding, drawn
  fuzzshard repro corpus/findings/NAME   a script that needs only torch

"""

# Of run and replay; what other commands mean by 1 and 3 is in their own texts.
EXIT_CODES = """\
Exit codes:
    0  clean: no finding, or every replayed finding is fixed
    1  at least one finding; for run, a new one
    2  bad input: an option, a path or a file cannot be used
    3  inconclusive: nothing could be judged, or a finding did not repeat
    4  the machine or fuzzshard failed: ranks do not start, the disk is full
  130  interrupted, by Ctrl-C or SIGTERM
"""


app = App(
    name="fuzzshard",
    help=HELP,
    help_epilogue=EXAMPLES + EXIT_CODES,
    help_format="plaintext",
    version=f"fuzzshard {__version__}",
    print_error=False,
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
_MERGE = Command(
    "merge",
    "corpus_sets:merge",
    "Join corpora in one: of each signature and set of features the smallest case is kept.",
)
COMMANDS = (
    Command(
        "run",
        "run:run",
        "Fuzz: draw random training runs and judge each one, until a limit or Ctrl-C.",
    ),
    Command(
        "check",
        "check:check",
        "Train your own model twice, plain and parallelised, and compare the two.",
    ),
    Command(
        "status",
        "status:status",
        "Show the progress and findings of campaigns, running or ended, on one node or several.",
    ),
    Command(
        "html",
        "html:html",
        "Write one HTML file with findings, scripts and cases.",
    ),
    _MERGE,
    Command("replay", "replay:replay", "Run saved cases again and print one line for each."),
    Command(
        "explain",
        "explain:explain",
        "Find out which known bugs of torch cause the findings of cases.",
    ),
    Command("show", "show:show", "Draw one case, or tell about a known bug."),
    Command(
        "shrink",
        "shrink:shrink",
        "Shrink a case with a finding to a minimal one with the same finding.",
    ),
    Command("repro", "repro:repro", "Print a script that shows the finding with torch alone."),
    Command("report", "report:report", "Draft a PyTorch issue of a finding (report.md)."),
    Command("bisect", "bisect:bisect", "Find the release of torch that began or fixed a finding."),
    Command(
        "features",
        "features:features",
        "List the features that cases can have, with what each means.",
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "Check that this machine can fuzz: a clean case must pass, a planted bug be found.",
    ),
)
CORPUS_COMMANDS = (
    Command("list", "corpus:list_", "Print one line for each entry, the worst first."),
    Command(
        "causes",
        "corpus:causes",
        "Print the causes of findings, a line for each, the worst first.",
    ),
    Command(
        "verify",
        "corpus:verify",
        "Check that each entry can be read and that its script belongs to its case.",
    ),
    _MERGE,
    Command("mark", "corpus_sets:mark", "Write into entries what you know about their finding."),
)
FLEET_COMMANDS = (
    Command(
        "run",
        "fleet:run",
        "Run a campaign on each node of a Ray cluster, and gather what they find in one corpus.",
    ),
)
for _order, _command in enumerate(COMMANDS):
    add_command(
        app,
        _command,
        _order,
        epilogue=EXIT_CODES if _command.name in ("run", "replay") else "",
        config=(whole_numbers,),
    )
_corpus = "List, verify, mark and merge saved cases."
app.command(group_app("corpus", len(COMMANDS), _corpus, CORPUS_COMMANDS))
_fleet = "Run campaigns on all nodes of a Ray cluster, without a shared folder."
app.command(group_app("fleet", len(COMMANDS) + 1, _fleet, FLEET_COMMANDS))
app.register_install_completion_command(
    help="Let bash, zsh or fish complete commands and options: adds a line to its start-up file."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; always ends in ``SystemExit``."""
    # by default Hypothesis would leave a folder .hypothesis where the user is
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_folder("hypothesis")))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = app(sys.argv[1:] if arguments is None else arguments) or 0
        sys.stdout.flush()
    except FuzzshardError as error:
        print(f"fuzzshard: {' '.join(str(error).split())}", file=sys.stderr)
        code = error.exit_code
    except CycloptsError as error:
        print(f"fuzzshard: {in_words(error)}", file=sys.stderr)
        code = EXIT_USAGE
    except KeyboardInterrupt as error:
        print(f"fuzzshard: interrupted{f': {error}' if str(error) else ''}", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # rich turns a reader that went away into SystemExit(1), our code for a finding
        if not isinstance(error.__context__ or error, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BROKEN_PIPE
    except Exception:  # a fault of ours must not leave with 1, which accuses torch
        traceback.print_exc()
        print("fuzzshard: internal error; please report it with the lines above", file=sys.stderr)
        code = EXIT_INFRA
    sys.exit(code)

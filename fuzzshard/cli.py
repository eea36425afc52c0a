"""The command line: which commands there are, and how errors become one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError

from fuzzshard import __version__
from fuzzshard.bisect.environment import cache_folder
from fuzzshard.commands.bisect import bisect
from fuzzshard.commands.check import check
from fuzzshard.commands.corpus import corpus_app
from fuzzshard.commands.corpus_sets import merge
from fuzzshard.commands.doctor import doctor
from fuzzshard.commands.explain import explain
from fuzzshard.commands.features import features
from fuzzshard.commands.fleet import fleet_app
from fuzzshard.commands.html import html
from fuzzshard.commands.mistakes import in_words, whole_numbers
from fuzzshard.commands.profiles import apply_profile
from fuzzshard.commands.replay import replay
from fuzzshard.commands.report import report
from fuzzshard.commands.repro import repro
from fuzzshard.commands.run import run
from fuzzshard.commands.show import show
from fuzzshard.commands.shrink import shrink
from fuzzshard.commands.status import status
from fuzzshard.commands.usage import with_flowing_help
from fuzzshard.errors import EXIT_INFRA, EXIT_INTERRUPTED, EXIT_USAGE, FuzzshardError

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
_COMMANDS: tuple[Callable[..., int], ...] = (
    run,
    check,
    status,
    html,
    merge,
    replay,
    explain,
    show,
    shrink,
    repro,
    report,
    bisect,
    features,
    doctor,
)
for _order, _command in enumerate(_COMMANDS):
    _config = (apply_profile, whole_numbers) if _command is run else (whole_numbers,)
    _epilogue = EXIT_CODES if _command in (run, replay) else ""
    app.command(
        with_flowing_help(_command), help_epilogue=_epilogue, sort_key=_order, config=_config
    )
app.command(corpus_app(sort_key=len(_COMMANDS)))
app.command(fleet_app(sort_key=len(_COMMANDS) + 1))
app.register_install_completion_command(
    help="Let bash, zsh or fish complete commands and options: adds a line to its start-up file."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; always ends in ``SystemExit``."""
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

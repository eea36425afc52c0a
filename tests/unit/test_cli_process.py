"""The command line as a process: what it imports, what it leaves behind in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ran

from fuzzshard import __version__
from fuzzshard.case import codec
from fuzzshard.corpus.files import write_atomic
from fuzzshard.doctor import clean_case
from fuzzshard.errors import EXIT_INTERRUPTED

TREE = Path(__file__).parents[2]
FUZZSHARD = [sys.executable, "-m", "fuzzshard"]
HEAVY = {"torch", "numpy", "hypothesis", "networkx", "jinja2", "rich.live", "sqlite3", "psutil"}
_OF_ALL = ("mistakes", "usage")
"""The modules of ``commands/`` that every command line needs."""
COMMANDS = ["run", "replay", "show", "shrink", "repro", "doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_no_exit_codes_of_others(command: str) -> None:
    result = ran(command, "--help")
    assert result.code == 0
    assert f"  fuzzshard {command}" in result.out
    assert ("at least one finding" in result.out) is (command in ("run", "replay"))


@pytest.mark.parametrize("words", [["shrink"], ["report"], ["bisect"], ["corpus", "verify"]])
def test_a_command_with_exit_codes_of_its_own_says_them(words: list[str]) -> None:
    assert "Exit code" in ran(*words, "--help").out


def test_the_help_of_all_commands_has_the_exit_codes() -> None:
    assert "130  interrupted" in ran("--help").out


def test_the_help_lists_every_command() -> None:
    listed = [line.split()[1] for line in ran("--help").out.splitlines() if line.startswith("│ ")]
    assert [word for word in listed if word in COMMANDS] == COMMANDS


def test_the_version_is_printed() -> None:
    assert ran("--version").out == f"fuzzshard {__version__}\n"


INTERRUPT_AT_IMPORT_OF = """
import os, signal, sys
from fuzzshard.__main__ import main


class Finder:
    def find_spec(self, name, *_):
        if name == "%s":
            os.kill(os.getpid(), signal.%s)


sys.meta_path.insert(0, Finder())
main()
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["cyclopts", "fuzzshard.report.show"])
def test_an_interrupt_is_one_line_even_while_modules_are_imported(
    number: str, module: str
) -> None:
    script = INTERRUPT_AT_IMPORT_OF % (module, number)
    result = subprocess.run(
        [sys.executable, "-c", script, "show", "list_group_unshards_late"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == "fuzzshard: interrupted\n"
    assert result.returncode == EXIT_INTERRUPTED


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interrupt_at_the_exit_is_one_line(number: str) -> None:
    script = f"""
import atexit, os, signal, sys
from fuzzshard.__main__ import main

atexit.register(os.kill, os.getpid(), signal.{number})
sys.argv = ["fuzzshard", "--version"]
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.stderr == "fuzzshard: interrupted\n"
    assert result.returncode == EXIT_INTERRUPTED


@pytest.mark.parametrize("arguments", ["show case.json", "--help", "shrink --help"])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, arguments: str) -> None:
    write_atomic(tmp_path / "case.json", codec.encode(clean_case(2)))
    command = f"'{sys.executable}' -m fuzzshard {arguments} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stderr == ""
    assert result.returncode in (0, 141)


def test_hypothesis_leaves_nothing_where_a_command_runs(tmp_path: Path) -> None:
    """It would write ``.hypothesis`` there; ``check --fuzz`` draws with it."""
    environment = os.environ | {"PYTHONPATH": str(TREE), "XDG_CACHE_HOME": str(tmp_path / "c")}
    environment.pop("HYPOTHESIS_STORAGE_DIRECTORY", None)  # commands of other tests set it
    command = """
import contextlib
from fuzzshard.cli import main
with contextlib.suppress(SystemExit):
    main(["--version"])
from hypothesis import given, strategies as st
given(st.integers())(lambda number: None)()
"""
    subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, env=environment, timeout=60, check=True
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_characters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    case = tmp_path / "case.json"
    write_atomic(case, codec.encode(clean_case(2)))
    result = subprocess.run(
        [*FUZZSHARD, "show", str(case)],
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"up: Linear(4 ? 6)" in result.stdout


IMPORTS = """
import sys
from fuzzshard.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(*sys.modules)
"""


def imported_by(words: list[str]) -> set[str]:
    """The modules that a command line imports."""
    program = [sys.executable, "-c", IMPORTS, *words]
    result = subprocess.run(program, capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["rn"], set()),
        (["corpus", "--help"], set()),
        (["fleet", "--help"], set()),
        (["run", "--help"], {"run"}),
        (["run", "--max-tme", "5s"], {"run"}),
        (["run", "--max-cases", "1.5"], {"run"}),
    ],
    ids=lambda value: " ".join(value if isinstance(value, list) else sorted(value)),
)
def test_a_command_is_imported_only_when_it_is_called(words: list[str], own: set[str]) -> None:
    modules = imported_by(words)
    assert "fuzzshard.cli" in modules
    of_all = {"fuzzshard.commands", *(f"fuzzshard.commands.{m}" for m in _OF_ALL)}
    ours = {m for m in modules if m.startswith("fuzzshard.commands")}
    assert ours - of_all == {f"fuzzshard.commands.{name}" for name in own}
    packages = {f"fuzzshard.{package}" for package in ("campaign.loop", "corpus", "world")}
    assert modules & {*packages, *HEAVY} == set()
    if not own:
        assert modules & {"fuzzshard.case", "fuzzshard.parts", "msgspec"} == set()

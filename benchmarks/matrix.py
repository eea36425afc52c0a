"""What fuzzshard is worth under several releases of torch: one table with a row for each of them.

Every release gets an environment of its own, made by uv, or by venv and pip; --envs names a folder
of environments that are there, each called like its release. In each of them this runs what
somebody would run by hand: false alarms on fresh cases (with all mends: on an old torch the known
bugs cost most ranks), cells of corpus/upstream, the hunt for planted bugs, the replay of the saved
findings. With --keep the same command goes on where it was interrupted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec
from common import (
    add_alarm_options,
    add_shrink_seconds,
    make_console,
    make_parser,
    print_json,
    run_main,
)
from matrix_steps import REPOSITORY, Cell, Step, make_steps, matrix_table, read_answers
from packaging.requirements import Requirement
from rich.console import Console

from fuzzshard.bisect.bisect import parse_versions
from fuzzshard.bisect.environment import CannotInstall, Source, environment
from fuzzshard.corpus.files import write_atomic
from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_FINDING,
    EXIT_INCONCLUSIVE,
    EXIT_INFRA,
    EXIT_INTERRUPTED,
)
from fuzzshard.temporary import cache_folder
from fuzzshard.world import resolve_device

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
ANSWERED = (EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE)
"""Exit codes of steps that ran to their end."""

RESULTS = "matrix.json"
Rows = dict[str, dict[str, Cell]]


def python_of(version: str, envs: Path | None, device: str) -> Path:
    """The Python that has torch ``version`` and what fuzzshard needs. Raises
    :class:`CannotInstall`.

    A torch for the CPU alone is tried first where it is enough: that with CUDA is 5 GB.
    """
    if envs is not None and (python := envs.resolve() / version / "bin" / "python").exists():
        return python
    cache = (envs or cache_folder("matrix")).resolve()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    others = [text for text in project["dependencies"] if Requirement(text).name != "torch"]
    if device == "cpu" and "+" not in version:
        try:
            wheels = Source(extra_index_url=(CPU_WHEELS,))
            return environment(f"{version}+cpu", cache, wheels, others=others)
        except CannotInstall:
            pass
    return environment(version, cache, Source(), others=others)


class Interrupted(Exception):
    """Ctrl-C, with what the step has said until then."""

    def __init__(self, step: str, cell: Cell) -> None:
        super().__init__()
        self.step = step
        self.cell = cell


class InterruptedOnce:
    """Within it Ctrl-C raises nothing here: it is handed on to a process, which has a session of
    its own.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> InterruptedOnce:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def hand_on_to(self, process: subprocess.Popen[str]) -> None:
        """``process`` gets it, at once if Ctrl-C came before there was one."""
        self._process = process
        if self.pressed:
            process.send_signal(signal.SIGINT)

    def _press(self, *_: object) -> None:
        self.pressed = True
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)


def _listen(stream: IO[str], said: list[str], console: Console, label: str) -> None:
    for line in filter(str.strip, stream):
        said.append(line.strip())
        console.print(f"{label}: {line.rstrip()}")


def run_step(step: Step, python: Path, console: Console, label: str) -> Cell:
    """Runs ``step`` with ``python``, its progress on ``console``; raises :class:`Interrupted`.

    After Ctrl-C a step ends by itself, with what it has then.
    """
    cell, began = Cell(step.arguments), time.monotonic()
    lines: list[str] = []
    said: list[str] = []
    with InterruptedOnce() as ctrl_c:
        process = subprocess.Popen(
            [str(python), *step.arguments],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        ctrl_c.hand_on_to(process)
        listener = threading.Thread(target=_listen, args=(process.stderr, said, console, label))
        listener.start()
        for line in process.stdout:
            lines.append(line)
            if len(lines) % 50 == 0:
                console.print(f"{label}: {len(lines)} entries")
        code = process.wait()
        listener.join()
    cell.seconds = time.monotonic() - began
    try:
        step.read(read_answers("".join(lines)), cell)
        answered = code in ANSWERED
    except (ValueError, KeyError):
        answered = False
    if ctrl_c.pressed:
        cell.failed = "interrupted"
        raise Interrupted(step.name, cell)
    if not answered:
        cell.failed = f"exit code {code}: {said[-1] if said else 'it did not say why'}"
    return cell


def take_over(results: Path, steps_of: Callable[[str], list[Step]]) -> Rows:
    """What an earlier run has left in ``results``, of the cells that would run with the same
    arguments.
    """
    if not results.exists():
        return {}
    rows = msgspec.json.decode(results.read_bytes(), type=Rows)
    taken: Rows = {}
    for version, cells in rows.items():
        wanted = {step.name: step.arguments for step in steps_of(version)}
        same = {
            name: c
            for name, c in cells.items()
            if wanted.get(name) == c.arguments and not c.failed
        }
        if same:
            taken[version] = same
    return taken


def fill(
    rows: Rows,
    versions: list[str],
    steps_of: Callable[[str], list[Step]],
    python_for: Callable[[str], Path],
    results: Path,
    console: Console,
) -> bool:
    """Runs what ``rows`` lacks, and writes down what there is after each cell; False after
    Ctrl-C.
    """
    for version in versions:
        cells = rows.setdefault(version, {})
        missing = [step for step in steps_of(version) if step.name not in cells]
        try:
            python = python_for(version) if missing else Path()
            for step in missing:
                label = f"torch {version}, {step.name}"
                console.print(f"{label}: begins")
                cells[step.name] = run_step(step, python, console, label)
                console.print(f"{label}: {cells[step.name].said}")
                write_atomic(results, msgspec.json.encode(rows))
        except CannotInstall as error:
            cells.update(
                {s.name: Cell(s.arguments, failed=f"no environment: {error}") for s in missing}
            )
        except Interrupted as ended:
            cells[ended.step] = ended.cell
            return False
        except KeyboardInterrupt:
            return False
    return True


def main() -> int:
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--torch", required=True, help="releases, separated by commas")
    parser.add_argument(
        "--envs", type=Path, help="folder of environments, each called like its release"
    )
    parser.add_argument(
        "--cases", type=int, default=1000, help="fresh cases for false alarms; 0: none"
    )
    add_alarm_options(parser, on="mended")
    parser.add_argument(
        "--upstream", type=int, default=64, help="cells of corpus/upstream; 0: none"
    )
    parser.add_argument(
        "--planted", type=Path, help="folder with INDEX.json and mutants/ of planted bugs"
    )
    parser.add_argument("--only", help="ids of the bugs to hunt, separated by commas")
    parser.add_argument("--max-cases", type=int, default=500, help="cases for each bug")
    parser.add_argument(
        "--corpus",
        type=Path,
        nargs="*",
        default=[Path("corpus/findings")],
        help="saved findings to replay",
    )
    parser.add_argument(
        "--keep", type=Path, help="folder for results and unexplained cases; None: temporary"
    )
    add_shrink_seconds(parser)
    args = parser.parse_args()
    console = make_console(args)
    versions = parse_versions(args.torch)
    keep = (args.keep or Path(tempfile.mkdtemp(prefix="fuzzshard-matrix-"))).resolve()
    device, _ = resolve_device(args.device)

    def steps_of(version: str) -> list[Step]:
        return make_steps(args, keep / version)

    names = [step.name for step in steps_of(versions[0])]
    if args.planted is None:
        console.print("no planted bugs are hunted: --planted says where they are")
    console.print(f"results are kept in {keep}")
    rows = take_over(keep / RESULTS, steps_of)
    for version, done in rows.items():
        console.print(f"torch {version}: {', '.join(done)} taken over")
    finished = fill(
        rows,
        versions,
        steps_of,
        lambda version: python_of(version, args.envs, device),
        keep / RESULTS,
        console,
    )
    rows = {version: rows[version] for version in versions if version in rows}
    cells = [cell for row in rows.values() for cell in row.values()]
    if args.json:
        print_json({"rows": msgspec.to_builtins(rows), "seed": args.seed, "finished": finished})
    else:
        console.print(matrix_table(names, rows))
    if not finished:
        return EXIT_INTERRUPTED
    if any(cell.finding for cell in cells):
        return EXIT_FINDING
    return EXIT_INFRA if any(cell.failed for cell in cells) else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)

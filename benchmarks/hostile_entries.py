"""Whether anything that is only data runs, hides or stops something: saved entries, with fields
that somebody means harm with.

Every value of an entry is a place, those that are left at their default too. Texts become code,
ends of quotes, escapes of terminals; numbers become huge; values come from elsewhere; names are
changed wherever they stand. Each entry lies in a corpus beside a good one. What is accepted is
written as scripts and drawn; nothing in them may be called or imported that no script of an
untouched entry calls or imports. Beside that: files that are none (a device, a pipe, one too
large), a mesh of 2**31 ranks, and journals with broken rows. ``--commands`` also runs the commands
that run scripts on some accepted entries, which must not leave a file behind.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import json
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from common import figures_table, make_console, make_parser, print_json, run_main

import fuzzshard
from fuzzshard.cli import main as run_command
from fuzzshard.corpus.causes import by_cause
from fuzzshard.corpus.codec import decode_entry, encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.listing import ANY, listed
from fuzzshard.corpus.scripts import script_of, scripts_of
from fuzzshard.corpus.store import entry_files
from fuzzshard.corpus.verify import verify
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, InvalidEntry, UsageError
from fuzzshard.events import FindingFound, FindingHit, KnownCause
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.report.show import drawn
from fuzzshard.reproducer.assemble import scripts
from fuzzshard.verdict import Status

CANARY = "fuzzshard_canary"
RUNS = f"__import__('os').system('touch {CANARY}')"
"""What nobody may run."""
TEXTS = (
    *(RUNS, f"{{{RUNS}}}", f"{{{{{RUNS}}}}}", f"]; {RUNS}; [", f'"; {RUNS}; "', f"'; {RUNS}; '"),
    *(
        f"\n{RUNS}\n",
        f"\r{RUNS}",
        f"\x0c{RUNS}",
        f"\u2028{RUNS}",
        f'"""\n{RUNS}\n"""',
        f"x\\\n{RUNS}",
    ),
    *(f"linear0.weight if [{RUNS}] else 0", f"weight.__init__({RUNS})", f"x) or {RUNS} or (x"),
    *(
        f'"]; {RUNS}; x["',
        f'")\n{RUNS}\n("',
        f"x' + str({RUNS}) + '",
        f'\\"; {RUNS} #',
        f"x, {RUNS}",
    ),
    *(
        "{",
        "}",
        "{}",
        "{0}",
        "{x!r:>99999999}",
        "{self.__class__}",
        "%s%n",
        "\\",
        "\\N{DASH}",
        '"',
    ),
    *("'", '"""', "'''", "\n", "\0", "\x1b]0;owned\x07", "\x1b[2J", "\x9b2J", "\u202e", "\ud800"),
    *(
        "",
        " ",
        ".",
        "..",
        "../../x",
        "/dev/zero",
        "import os",
        "lambda",
        "__class__",
        "a.__init__",
    ),
    *("os.abort", "x" * 5000, "é", "of", " of ", ", ", "the root", "unsharded ", "self", "torch"),
)
NUMBERS = (
    *(-1, 0, 1, 2, 3, 5, 7, 64, 4096, 4097, 10**6, 2**31, 2**63, -(2**63), 2**64, 10**30),
    *(0.5, -0.5, 1e-320, 1e308, -1e308, True, None),
)
SECONDS = 20
"""An entry that takes longer hangs."""
MOST_MEMORY = 2**31
"""Bytes; an entry that takes more ends in a traceback."""

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]
Place = tuple[Any, ...]


# Entries


def whole(value: Any) -> Any:
    """Write a value as JSON with all its fields, those at their default too."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        told = {value.__struct_config__.tag_field or "": tag} if tag is not None else {}
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return told | {in_json: whole(getattr(value, name)) for in_json, name in names}
    if isinstance(value, dict):
        return {str(key): whole(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [whole(each) for each in value]
    return value


def sources() -> list[dict[str, Any]]:
    """Read the saved entries and cases that are changed."""
    corpus = Path(__file__).parents[1] / "corpus"
    files = entry_files([corpus / "findings", corpus / "regressions"])
    return [whole(read_entry(file)) for file in files]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    """List the way to every value in a document."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, each in items:
        yield (*above, key)
        yield from places(each, (*above, key))


def at(document: Any, place: Place) -> Any:
    """Return what is at a place."""
    for key in place:
        document = document[key]
    return document


def hostile(document: dict[str, Any], donor: dict[str, Any], choose: Choose[Any]) -> Place:
    """Change one value of ``document``, or a name wherever it stands; return where.

    Texts are as likely as all the rest, and among each of the two kinds one field as any other,
    however often it occurs.
    """
    of_texts = choose((True, False))
    named: dict[Any, list[Place]] = {}
    for each in places(document):
        if isinstance(at(document, each), str) == of_texts:
            field = next((key for key in reversed(each) if isinstance(key, str)), "")
            named.setdefault((each[0], field), []).append(each)
    place: Place = choose(named[choose(list(named))])
    *above, key = place
    parent, value = at(document, tuple(above)), at(document, place)
    how = choose(_OF_TEXTS if of_texts else _OF_OTHERS)
    if how == "key" and isinstance(parent, dict):
        parent[choose(TEXTS)] = parent.pop(key)
    elif how == "within":
        cut = choose(range(len(value) + 1))
        parent[key] = value[:cut] + choose(TEXTS) + value[cut:]
    elif how == "rename" and value:
        _rename(document, choose(re.split(r"\W", value)) or value, choose(TEXTS))
    elif how == "graft":
        same = [each for each in places(donor) if each[-1] == key]
        parent[key] = json.loads(json.dumps(at(donor, choose(same)))) if same else choose(TEXTS)
    elif how == "drop":
        del parent[key]
    elif how == "number":
        parent[key] = choose(NUMBERS)
    elif how == "list":
        parent[key] = [
            *(value if isinstance(value, list) else []),
            choose(choose((NUMBERS, NUMBERS, TEXTS))),
        ]
    else:
        parent[key] = choose(TEXTS)
    return place


_OF_TEXTS = (*("text",) * 6, *("within",) * 2, "rename", "graft", "drop", "key", "number")
_OF_OTHERS = (*("number",) * 4, *("list",) * 4, "graft", "drop", "key", "text")
"""Ways to change a value."""


def _rename(value: Any, old: str, new: str) -> None:
    for place in list(places(value)):
        found = at(value, place)
        if isinstance(found, str):
            at(value, place[:-1])[place[-1]] = re.sub(
                rf"\b{re.escape(old)}\b", lambda _: new, found
            )


# What is made of them


def calls(source: str) -> set[str]:
    """Name what a script calls and imports, but for what it defines and modules of its model."""
    tree = ast.parse(source)
    own = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            while isinstance(function, ast.Subscript | ast.Call):
                function = function.value if isinstance(function, ast.Subscript) else function.func
            called = ast.unparse(function)
            if called.startswith("self.") and called.replace(".", "").replace("_", "").isalnum():
                continue
            found.add(called.rpartition(".")[2] if isinstance(function, ast.Attribute) else called)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
    return {name for name in found if name not in own}


def texts_of(entry: CorpusEntry) -> list[str]:
    """Write all scripts of an entry."""
    with contextlib.suppress(UsageError):
        return list(scripts_of(entry, scripts))
    return []


def generator_words() -> set[str]:
    """Read the words of the code that writes scripts: another option may call another of them."""
    package = Path(fuzzshard.__file__).parents[0]
    folders = ("program", "reproducer", "model", "parts", "engines", "contracts")
    files = (file for folder in folders for file in (package / folder).rglob("*.py"))
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    return words - {word for text in TEXTS for word in re.findall(r"\w+", text)}


def known_calls(entries: Sequence[dict[str, Any]]) -> set[str]:
    """Name what scripts of untouched entries call and import, or may by another option."""
    found = generator_words()
    for entry in entries:
        for text in texts_of(decode_entry(json.dumps(entry).encode(), Path("case.json"))):
            found |= calls(text)
    return found


def obeyed(text: str) -> list[str]:
    """List the characters of a text that a terminal would obey."""
    return [each for each in text if not each.isprintable() and each not in "\n\t"]


@dataclasses.dataclass
class Figures:
    """What became of the entries; ``shown`` has an example of each kind of harm."""

    tried: int = 0
    accepted: int = 0
    refused: int = 0
    code_run: int = 0
    tracebacks: int = 0
    stopped: int = 0
    hung: int = 0
    escapes: int = 0
    commands: int = 0
    shown: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def harm(self) -> int:
        """How often something was run, hidden or stopped."""
        return self.code_run + self.tracebacks + self.stopped + self.hung + self.escapes

    def note(self, kind: str, what: str) -> None:
        """Count some harm."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.shown.setdefault(f"{kind}: {what.partition(': ')[2] or what}"[:160], what[:300])


class Hung(BaseException):
    """An entry takes too long; no handler of errors stops it."""


def _ring(*_: object) -> None:
    raise Hung


def judge(document: dict[str, Any], known: set[str], figures: Figures, where: str) -> None:
    """Decode one entry and make everything of it that commands make."""
    figures.tried += 1
    data = json.dumps(document).encode()
    try:
        entry = decode_entry(data, Path("corpus/bad/case.json"))
    except InvalidEntry as error:
        figures.refused += 1
        if "\n" in str(error) or obeyed(str(error)):
            figures.note("escapes", f"{where}: refusal {str(error)!r}")
        return
    except Exception as error:
        figures.note("tracebacks", f"{where}: decoding raises {type(error).__name__}")
        return
    figures.accepted += 1
    try:
        written = texts_of(entry)
        saved = script_of(entry, scripts)
        seen = drawn(entry, Path("corpus/bad"))
    except Exception as error:
        figures.note("tracebacks", f"{where}: writing raises {type(error).__name__}: {error}")
        return
    if obeyed(seen):
        figures.note("escapes", f"{where}: show prints {obeyed(seen)[0]!r}")
    for text in {*written, saved}:
        try:
            foreign = calls(text) - known
        except (SyntaxError, ValueError) as error:
            figures.note("code_run", f"{where}: a script does not parse: {error}")
            continue
        if foreign:
            figures.note("code_run", f"{where}: a script calls {sorted(foreign)[0]}")


def in_corpus(document: dict[str, Any], good: bytes, folder: Path, figures: Figures) -> None:
    """Load an entry beside a good one, which must be there whatever the other is."""
    for name, data in (("good", good), ("bad", json.dumps(document).encode())):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "case.json").write_bytes(data)
    try:
        stored, broken = load([folder])
        listed(stored, ANY)
        by_cause(stored)
    except Exception as error:
        figures.note("stopped", f"a corpus: {type(error).__name__} stops it")
        return
    if folder / "good" / "case.json" not in [item.file for item in stored]:
        figures.note("stopped", f"a corpus: {broken} hides the other entry")


def changed(
    originals: Sequence[dict[str, Any]], count: int, rng: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Write ``count`` entries, and say where each is hostile.

    Then, for every forward that there is, one that uses an output which is not there.
    """
    for _ in range(count):
        document = json.loads(json.dumps(rng.choice(originals)))
        donor = rng.choice(originals)
        places = [hostile(document, donor, rng.choice) for _ in range(rng.choice((1, 1, 2)))]
        yield " and ".join(".".join(map(str, place)) for place in places), document
    for original in originals:
        for index, op in enumerate(original["case"]["schedule"]):
            if "outputs" in op:
                document = json.loads(json.dumps(original))
                document["case"]["schedule"][index]["outputs"] = [5]
                yield f"case.schedule.{index}.outputs", document


def entries(count: int, seed: int, figures: Figures) -> list[dict[str, Any]]:
    """Try ``count`` entries and some more; return those that were accepted."""
    originals = sources()
    known, accepted = known_calls(originals), []
    good = encode_entry(decode_entry(json.dumps(originals[0]).encode(), Path("case.json")))
    signal.signal(signal.SIGALRM, _ring)
    with tempfile.TemporaryDirectory() as name:
        for where, document in changed(originals, count, random.Random(seed)):
            before = figures.accepted
            signal.alarm(SECONDS)
            try:
                judge(document, known, figures, where)
                in_corpus(document, good, Path(name), figures)
            except Hung:
                figures.note("hung", f"{where}: takes more than {SECONDS} s")
            finally:
                signal.alarm(0)
            if figures.accepted > before:
                accepted.append(document)
    return accepted


# Files that are no entries, and journals


def command(*words: str, seconds: float = 60) -> tuple[int | None, str]:
    """Run a command as a user would; its exit code, None where it hangs, and all that it says."""
    ran = [sys.executable, "-m", "fuzzshard", *words]
    try:
        done = subprocess.run(
            ran, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def files(original: dict[str, Any], figures: Figures) -> None:
    """Show what is no regular file, what is too large, and a mesh that has no end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        huge = json.loads(json.dumps(original))
        huge["case"]["mesh"]["shard"] = 2**31
        made: dict[str, Callable[[Path], object]] = {
            "a device": lambda file: file.symlink_to("/dev/zero"),
            "a pipe": os.mkfifo,
            "a large file": lambda file: file.write_bytes(b" " * 2**26 + b"{}"),
            "a mesh of 2**31": lambda file: file.write_text(json.dumps(huge)),
            "nested lists": lambda file: file.write_text("[" * 10**5),
        }
        for what, make in made.items():
            file = folder / "case.json"
            file.unlink(missing_ok=True)
            make(file)
            figures.tried += 1
            _judge_command(what, ("show", str(folder)), figures)


def _judge_command(what: str, words: Sequence[str], figures: Figures) -> None:
    code, said = command(*words)
    if code is None:
        figures.note("hung", f"a file: fuzzshard {words[0]} hangs on {what}")
    elif "Traceback" in said or code < 0:
        last = said.splitlines()[-2:]
        figures.note("tracebacks", f"a file: fuzzshard {words[0]} of {what} ends with {last}")
    else:
        figures.refused += 1


_BROKEN = {
    "nothing": "SELECT 1",
    "options": "UPDATE session SET options = '{broken'",
    "options that are a list": "UPDATE session SET options = '[]'",
    "other info": "UPDATE session SET info = '7'",
    "a body": "UPDATE event SET body = '{broken'",
    "an event of no kind": 'UPDATE event SET body = \'{"event": "nothing"}\'',
    "an escape": "UPDATE session SET host = char(27) || ']0;owned', reason = char(27) || '[2J'",
    "text for a number": "UPDATE case_run SET began = 'soon', seconds = 'long', number = 'x'",
    "a status": "UPDATE case_run SET status = 'NOTHING'",
    "another body": "UPDATE event SET body = '[1, {\"path\": 7}]'",
    "numbers for texts": "UPDATE event SET body = replace(body, '\"findings/x\"', '7')",
    "text for seconds": "UPDATE case_run SET seconds = 'long'",
    "endless seconds": "UPDATE session SET elapsed = 9e999, last_new = 9e999",
    "large seconds": "UPDATE session SET elapsed = 1e300, started = 1e300",
    "large seconds of cases": "UPDATE case_run SET began = 1e300, seconds = 1e300",
    "no such session": "UPDATE case_run SET session = 77",
    "no such session in events": "UPDATE event SET session = 77",
    "a negative process": "UPDATE session SET pid = -5, world_size = -1",
    "no events": "DROP TABLE event",
    "no features": "DROP TABLE first_seen",
    "no cases": "DROP TABLE case_run",
    "no sessions": "DROP TABLE session",
}


_SEEN, _AT = "divergence/fully_shard/gradient", "findings/x"


def journal(file: Path) -> None:
    """Write the journal of a small campaign."""
    connection = connect(file)
    options = '{"stream": {}, "limits": {}}'
    info = '{"torch": "2.15.0", "backend": "gloo", "device": "cpu", "python": "3.12"}'
    connection.execute(
        "INSERT INTO session (id, campaign, started, options, seed, stream_seed, version, host, "
        "pid, world_size, worlds, device, info) VALUES (1, 1, 1.0, ?, 1, 1, '1', 'here', 1, 2, "
        "1, 'cpu', ?)",
        (options, info),
    )
    connection.execute(
        "INSERT INTO case_run (id, session, number, world, began, status, seconds) "
        "VALUES (1, 1, 0, 0, 0.5, 'PASS', 0.1)"
    )
    for event in (
        FindingFound(index=0, status=Status.DIVERGENCE, signature=_SEEN, summary="x", path=_AT),
        FindingHit(index=1, signature=_SEEN, path=_AT, hits=1),
        KnownCause(index=1, signature=_SEEN, causes=("x",)),
    ):
        connection.execute(
            "INSERT INTO event (session, world, elapsed, kind, body) VALUES (1, 0, 1.0, ?, ?)",
            (event.__struct_config__.tag, msgspec.json.encode(event).decode()),
        )
    connection.close()


def journals(figures: Figures) -> None:
    """Ask for the status and the page of campaigns with broken journals."""
    with tempfile.TemporaryDirectory() as name:
        for number, (what, statement) in enumerate(_BROKEN.items()):
            folder = Path(name) / str(number)
            folder.mkdir()
            journal(folder / JOURNAL_FILE)
            connection = sqlite3.connect(folder / JOURNAL_FILE)
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute(statement)
            connection.commit()
            connection.close()
            _ask(folder, what, figures)
        empty = Path(name) / "empty"
        empty.mkdir()
        (empty / JOURNAL_FILE).touch()
        _ask(empty, "an empty file", figures)


def _ask(folder: Path, what: str, figures: Figures) -> None:
    page = ("html", str(folder), "--output", str(folder / "page.html"))
    for words in (("status", str(folder)), page):
        figures.tried += 1
        said = io.StringIO()
        code: object = 0
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                run_command(words)
            except SystemExit as error:
                code = error.code
        if "Traceback" in said.getvalue():
            last = said.getvalue().splitlines()[-2]
            figures.note("tracebacks", f"a journal: fuzzshard {words[0]}, {what}: {last}")
        elif obeyed(said.getvalue()):
            figures.note("escapes", f"a journal: fuzzshard {words[0]} prints escapes")
        elif code:
            figures.refused += 1
        else:
            figures.accepted += 1


# Commands that run scripts


_TEST = "def test_nothing():\n    pass\n"


def commands(accepted: Sequence[dict[str, Any]], count: int, seed: int, figures: Figures) -> None:
    """Run the commands that run something on ``count`` accepted entries with findings."""
    found = [document for document in accepted if document.get("signature")]
    here = os.getcwd()
    for document in random.Random(seed).sample(found, min(count, len(found))):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "corpus" / "findings" / "bad"
            folder.mkdir(parents=True)
            (folder / "case.json").write_text(json.dumps(document))
            entry = read_entry(folder / "case.json")
            (folder / "repro.py").write_text(script_of(entry, scripts))
            (Path(name) / "test_nothing.py").write_text(_TEST)
            corpus, bad = str(folder.parents[1]), str(folder)
            try:
                os.chdir(name)
                for words in (
                    ("repro", bad, "--check", "--anew"),
                    ("corpus", "verify", corpus, "--run", "--device", "cpu"),
                    ("replay", corpus, "--device", "cpu"),
                    ("merge", corpus, "--into", "other"),
                    ("report", bad, "--device", "cpu", "-o", "report.md"),
                ):
                    figures.commands += 1
                    _, said = command(*words, seconds=300)
                    if "Traceback" in said and "internal error" in said:
                        figures.note(
                            "tracebacks", f"fuzzshard {' '.join(words[:2])}: {said[-200:]}"
                        )
                subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", "-p", "fuzzshard.pytest_plugin", bad],
                    capture_output=True,
                    timeout=300,
                    check=False,
                )
                figures.commands += 1
            finally:
                os.chdir(here)
            if list(Path(name).rglob(CANARY)):
                figures.note("code_run", f"a command: {document.get('signature')} ran {CANARY}")


def verify_in(document: dict[str, Any], figures: Figures) -> None:
    """Verify an entry of which no script can be written."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "case.json"
        file.write_text(json.dumps(document))
        file.with_name("repro.py").write_text("print()\n")
        try:
            verify(file, scripts)
        except Exception as error:
            figures.note("tracebacks", f"corpus verify: {type(error).__name__} stops it")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="entries to try")
    parser.add_argument(
        "--commands", type=int, default=0, help="accepted entries to run commands on"
    )
    args = parser.parse_args()
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, limits[1]))
    console, figures = make_console(args), Figures()
    console.print(f"{args.examples} entries, seed {args.seed}")
    accepted = entries(args.examples, args.seed, figures)
    for document in accepted:
        verify_in(document, figures)
    files(sources()[0], figures)
    journals(figures)
    resource.setrlimit(resource.RLIMIT_DATA, limits)  # ranks need more
    commands(accepted, args.commands, args.seed, figures)
    told = dataclasses.asdict(figures)
    shown = told.pop("shown")
    names = {
        "tried": "entries tried",
        "accepted": "accepted",
        "refused": "refused with one line",
        "code_run": "code run",
        "tracebacks": "tracebacks",
        "stopped": "corpora stopped",
        "hung": "hung",
        "escapes": "escapes printed",
        "commands": "commands run",
    }
    console.print(figures_table("Hostile entries", {names[key]: told[key] for key in told}))
    kinds = Counter(each.partition(":")[0] for each in shown)
    for kind, what in shown.items():
        console.print(f"{kind}\n    {what!r}", markup=False)
    if args.json:
        print_json({**told, "kinds": kinds, "shown": shown})
    return EXIT_FINDING if figures.harm else EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)

"""The site: what is generated is there, and commands that pages show exist."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cyclopts import App
from cyclopts.exceptions import MissingArgumentError

from fuzzshard import cli
from fuzzshard.mending.mend import own_mends
from fuzzshard.parts.oracles import ORACLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GROUPS = ("corpus", "fleet")
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The hook of MkDocs, which needs no MkDocs to be imported."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def shown_commands(page: Path) -> Iterator[list[str]]:
    """The words of every fuzzshard command in the blocks of a page."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`(fuzzshard [^`]+)`", page.read_text())
    for line in (*"\n".join(fenced).replace("\\\n", " ").splitlines(), *inline):
        command = re.match(r"(?:\$ |\S*/bin/)?fuzzshard (.*)", line.strip())
        if command and "..." not in line:
            yield shlex.split(command[1], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_is_one_that_is_accepted(page: Path) -> None:
    for words in shown_commands(page):
        if "COMMAND" not in words:
            with contextlib.suppress(MissingArgumentError):  # a command that prose names
                cli.app.parse_args([word.replace("NAME", "ci") for word in words])


def test_every_part_that_a_page_asks_for_is_generated(generate: ModuleType) -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    asked = set(re.findall(r"^<!-- generated: (\w+) -->$", pages, flags=re.MULTILINE))
    assert asked == set(generate.PARTS) != set()


def test_every_option_of_every_command_is_on_the_page_of_commands(generate: ModuleType) -> None:
    page = generate.commands()
    options = {
        name
        for app in (cli.app, *map(cli.app.__getitem__, GROUPS))
        for command in app
        if not command.startswith("-") and command not in GROUPS
        for name in _options(app[command])
    }
    assert {"--max-time", "--known", "--vary", "--nodes"} <= options
    assert all(name in page for name in options)


def _options(app: App) -> Iterator[str]:
    for argument in app.assemble_argument_collection():
        if not argument.show:  # one that our own commands give
            continue
        yield from (name for name in argument.names if name.startswith("--"))


def test_every_known_bug_is_among_those_that_were_found(generate: ModuleType) -> None:
    page = generate.trophies()
    assert own_mends()
    assert all(f"`{name}`" in page for name in own_mends())


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_every_oracle_says_what_it_cannot_see(oracle: object) -> None:
    assert "It cannot " in (type(oracle).__doc__ or "")


def test_docstrings_become_markdown(generate: ModuleType) -> None:
    text = "Raises :class:`~fuzzshard.errors.UsageError` for ``0``."
    assert generate.prose(text) == "Raises `fuzzshard.errors.UsageError` for `0`."


@pytest.mark.parametrize(
    ("is_copied", "link", "on_site"),
    [
        (False, "[n](../../notes/0026-x.md)", "[n](../notes/0026-x.md)"),
        (False, "[n](../ARCHITECTURE.md#ranks)", "[n](ARCHITECTURE.md#ranks)"),
        (False, "[n](../reference/case.md)", "[n](../reference/case.md)"),
        (True, "[n](docs/strategies.md)", "[n](strategies.md)"),
        (True, "[n](../docs/ci.md)", "[n](../ci.md)"),
    ],
)
def test_links_across_the_border_of_the_docs_are_mended(
    generate: ModuleType, is_copied: bool, link: str, on_site: str
) -> None:
    assert generate.with_links(link, is_copied=is_copied) == on_site


def test_a_source_that_a_page_asks_for_is_shown_whole(generate: ModuleType) -> None:
    path = "fuzzshard/parts/leaves/lstm.py"
    shown = generate.with_parts(f"above\n\n<!-- source: {path} -->\n\nbelow\n")
    assert shown == f"above\n\n```python\n{(ROOT / path).read_text()}```\n\nbelow\n"


def test_of_a_source_a_page_may_ask_for_one_class(generate: ModuleType) -> None:
    shown = generate.with_parts("<!-- source: fuzzshard/parts/oracles/tensors.py Buffer -->\n")
    assert shown.startswith("```python\nclass Buffer(oracle.TensorOracle):\n")
    assert shown.endswith("\n        return seen.buffers()\n```\n")

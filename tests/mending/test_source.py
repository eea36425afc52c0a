"""Edits of source, and diffs of them. Nothing here imports torch."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from fuzzshard.mending import Edit, Promise, Releases
from fuzzshard.mending.mend import Mend
from fuzzshard.mending.source import NotAsKnown, as_diff, edited_functions, find_function, why_not

HERE = "torch.made_up:f"


def mend(*edits: Edit) -> Mend:
    return Mend(
        slug="made_up",
        title="What a test has made up",
        component="other",
        weight="bug",
        contract=Promise("words", "place"),
        torch=Releases(),
        public=(),
        diagnosis="",
        file=Path("made_up.py"),
        edits=edits,
    )


def edit(old: str, new: str, target: str = HERE) -> Edit:
    return Edit(target, textwrap.dedent(old), textwrap.dedent(new))


def write(torch: Path, text: str, name: str = "made_up.py") -> Path:
    file = torch / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


def after(*edits: Edit) -> list[str]:
    ((_, lines),) = edited_functions(edits).values()
    return list(lines)


PLAIN = """\
    # above

    @decorated(1)
    def f(x):
        if x:
            x = 1

            x = 2
        y = 1
        return x
    """


def test_lines_are_replaced_at_their_depth(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    grown = edit(
        """
        x = 1

        x = 2
        """,
        """
        for i in x:

            x = i
        """,
    )
    assert after(grown) == [
        "def f(x):",
        "    if x:",
        "        for i in x:",
        "",
        "            x = i",
        "    y = 1",
        "    return x",
    ]


def test_a_function_begins_below_its_decorators(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    assert find_function(HERE).first_line == 4
    assert find_function(HERE).lines[-1] == "    return x"


def test_lines_may_be_removed(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    assert after(edit("y = 1", "")) == [
        line for line in find_function(HERE).lines if "y = 1" not in line
    ]


def test_two_edits_of_one_function_are_both_made(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    lines = after(edit("y = 1", "y = 3"), edit("return x", "return x, y"))
    assert lines[-2:] == ["    y = 3", "    return x, y"]


def test_a_second_edit_may_build_on_the_first(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    assert after(edit("y = 1", "y = 3"), edit("y = 3", "y = 4"))[-2] == "    y = 4"


@pytest.mark.parametrize(
    ("old", "why"),
    [
        ("y = 2", "0 times 'y = 2'"),
        ("y = 1\nx = 3", "0 times 'y = 1'"),
        ("if x:\n        x = 1", "0 times 'if x:'"),
        ("= 1", "0 times '= 1'"),
        ("def f(x):\n    if x:\n        y = 1", "0 times 'def f(x):'"),
    ],
    ids=["other", "one more line", "too deep", "part of a line", "another end"],
)
def test_lines_that_are_not_there_are_not_as_known(torch_folder: Path, old: str, why: str) -> None:
    write(torch_folder, PLAIN)
    with pytest.raises(NotAsKnown, match=why.replace("(", r"\(").replace(")", r"\)")):
        after(edit(old, "pass"))


def test_lines_that_are_there_twice_are_not_as_known(torch_folder: Path) -> None:
    write(torch_folder, "def f(x):\n    x = 1\n    if x:\n        x = 1\n")
    with pytest.raises(NotAsKnown, match="2 times 'x = 1'"):
        after(edit("x = 1", "x = 2"))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("torch.gone:f", "no module torch.gone"),
        ("torch.made_up:g", "0 of g"),
        ("torch.made_up:Owner.g", "0 of Owner.g"),
        ("torch.made_up:twice", "2 of twice"),
        ("torch.made_up:Owner", "is no function"),
    ],
)
def test_functions_that_are_gone_or_not_one_are_not_as_known(
    torch_folder: Path, target: str, why: str
) -> None:
    write(
        torch_folder,
        """\
        class Owner:
            def f(self): ...

        def twice(): ...
        def twice(): ...
        """,
    )
    with pytest.raises(NotAsKnown, match=why):
        after(edit("pass", "", target))


def test_functions_are_found_in_classes_below_conditions_and_in_packages(
    torch_folder: Path,
) -> None:
    write(
        torch_folder,
        """\
        if True:
            class Owner:
                class Inner:
                    async def f(self):
                        pass
        """,
        "package/__init__.py",
    )
    assert find_function("torch.package:Owner.Inner.f").first_line == 4


def test_a_mend_fits_where_all_its_edits_for_this_release_do(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    fits, gone = edit("y = 1", "y = 2"), edit("z = 1", "z = 2")
    assert why_not(mend(fits)) == ""
    assert why_not(mend(fits, gone)) == f"{HERE} has 0 times 'z = 1'"
    for_others = Edit(HERE, gone.old, gone.new, Releases(until="2.0"))
    assert why_not(mend(fits, for_others)) == ""
    assert mend(fits, for_others).edits_here() == (fits,)
    assert mend(fits, for_others).edits_here("1.13") == (fits, for_others)


SECOND = """\
    class Owner:
        def g(self):
            a = 1
            b = 2
            return a

        def h(self):
            return 0
    """


def test_a_diff_turns_the_source_of_torch_into_what_is_mended(torch_folder: Path) -> None:
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("there is no patch command")
    write(torch_folder, PLAIN)
    second = write(torch_folder, SECOND, "nested/second.py")
    diff = as_diff(
        mend(
            edit("return 0", "a = 0\nreturn a", "torch.nested.second:Owner.h"),
            edit("y = 1", "y = 3"),
            edit("a = 1\nb = 2", "a = 4", "torch.nested.second:Owner.g"),
        )
    )
    assert diff.startswith("--- a/torch/nested/second.py\n+++ b/torch/nested/second.py\n@@ ")
    applied = subprocess.run(
        [patch, "-p1"],
        input=diff,
        cwd=torch_folder.parent,
        text=True,
        capture_output=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stdout
    assert second.read_text() == textwrap.dedent(SECOND).replace(
        "a = 1\n        b = 2", "a = 4"
    ).replace("return 0", "a = 0\n        return a")
    assert (torch_folder / "made_up.py").read_text() == textwrap.dedent(PLAIN).replace(
        "y = 1", "y = 3"
    )


def test_a_diff_of_what_does_not_fit_is_not_as_known(torch_folder: Path) -> None:
    write(torch_folder, PLAIN)
    with pytest.raises(NotAsKnown):
        as_diff(mend(edit("z = 1", "z = 2")))

"""What every file of ``fuzzshard/mends`` has to be."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from mend_files import mend_file
from packaging.version import Version

from fuzzshard.contracts.contract import OLDEST_TORCH
from fuzzshard.engines.registry import REFUSALS
from fuzzshard.errors import UsageError
from fuzzshard.mending.mend import find_mend, mend_from, mends_for, own_mends
from fuzzshard.mending.patch import Mended, function_of
from fuzzshard.mending.source import as_diff, edited_functions, find_function, why_not

MOST_SIGNATURES = 8
"""Causes that neither a change of torch nor a tripwire can tell."""

FITTING = [slug for slug, mend in sorted(own_mends().items()) if mend.torch.include()]

each_mend = pytest.mark.parametrize("slug", sorted(own_mends()))
each_fitting = pytest.mark.parametrize("slug", FITTING)


@each_mend
def test_a_mend_says_what_is_wrong_and_which_promise_that_breaks(slug: str) -> None:
    mend = own_mends()[slug]
    assert re.fullmatch(r"\S.*: .+[^.]", mend.title), "<API>: <wrong result> when <condition>"
    assert len(mend.title) <= 110
    sentences = [part for part in mend.diagnosis.replace("\n", " ").split(". ") if part.strip()]
    assert len(sentences) >= 3, "the diagnosis takes some sentences"
    assert mend.contract.quote
    assert mend.contract.source


@each_mend
def test_a_mend_says_where_it_was_looked_for_in_public(slug: str) -> None:
    mend = own_mends()[slug]
    assert mend.public
    for look in mend.public:
        assert look.link or (look.query and look.date), look
        assert not look.link or look.link.startswith("https://github.com/"), look
        assert not look.date or date.fromisoformat(look.date), look


@each_mend
def test_a_mend_and_its_edits_are_of_a_release_that_is_supported(slug: str) -> None:
    mend = own_mends()[slug]
    for releases in (mend.torch, *(edit.releases for edit in mend.edits)):
        assert not releases.until or Version(releases.until) > Version(OLDEST_TORCH)


def test_a_mend_lifts_refusals_that_an_engine_announces() -> None:
    announced = {refusal.pattern for refusal in REFUSALS}
    lifted = {pattern for mend in own_mends().values() for pattern in mend.lifts}
    assert lifted
    assert lifted <= announced


def test_reading_the_mends_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from fuzzshard.mending.mend import mends_for, own_mends\n"
        "from fuzzshard.mending.source import why_not\n"
        "assert list(map(why_not, own_mends().values()))\n"
        "assert mends_for()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@each_fitting
def test_a_mend_fits_the_installed_torch_that_it_is_for(slug: str) -> None:
    assert why_not(own_mends()[slug]) == ""


@each_fitting
def test_a_mend_can_be_told_as_a_diff(slug: str) -> None:
    mend = own_mends()[slug]
    edits, diff = mend.edits_here(), as_diff(mend)
    assert diff.count("+++ b/torch/") == len({edit.target.split(":")[0] for edit in edits})
    for before, after in edited_functions(edits).values():
        assert all(f"+{line}\n" in diff for line in after if line not in before.lines)


def test_all_mends_of_the_installed_torch_can_be_on_together() -> None:
    edits = [edit for slug in FITTING for edit in own_mends()[slug].edits_here()]
    mended, stock = Mended(), {}
    for target in edited_functions(edits):
        function = function_of(target)
        assert function is not None, target
        stock[function] = function.__code__
    mended.switch(mends_for(), compiles=True)
    for function, code in stock.items():
        assert function.__code__ != code
        assert function.__code__.co_qualname == code.co_qualname
        assert function.__code__.co_freevars == code.co_freevars
    mended.switch((), compiles=True)
    assert all(function.__code__ is code for function, code in stock.items())


def test_few_causes_are_known_by_their_signature_only() -> None:
    signatures = [slug for slug, mend in own_mends().items() if mend.kind == "signature"]
    assert len(signatures) <= MOST_SIGNATURES


def test_mends_are_found_by_their_names() -> None:
    assert set(mends_for()) == set(FITTING)
    assert mends_for("1.0") == ()
    assert all(find_mend(slug) is own_mends()[slug] for slug in own_mends())


def test_mends_of_ones_own_come_beside_those_that_fuzzshard_has(tmp_path: Path) -> None:
    here = mend_file(tmp_path, "here", "def apply(patch): pass")
    mend_file(tmp_path, "elsewhere", "TORCH = Releases(until='2.0')\ndef apply(patch): pass")
    (tmp_path / "_helper.py").write_text("raise AssertionError('no mend')")
    assert mends_for(extra=[tmp_path]) == (*mends_for(), str(here))
    assert find_mend(str(here)).slug == "here"


def test_mends_of_ones_own_that_change_what_others_change_are_said(tmp_path: Path) -> None:
    target, old = (
        "torch.nn.modules.linear:Linear.forward",
        "return F.linear(input, self.weight, self.bias)",
    )
    for slug in ("one", "two"):
        mend_file(tmp_path / slug, slug, f"EDITS = (Edit({target!r}, {old!r}, 'return 0'),)")
    mend_file(tmp_path / "two", "unfit", f"EDITS = (Edit({target!r}, 'gone', 'return 0'),)")
    assert mends_for(extra=[tmp_path / "two"])
    with pytest.raises(UsageError, match="two and those before it do not go together"):
        mends_for(extra=[tmp_path / "one", tmp_path / "two"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("TITLE = CONTRACT = None\ndef apply(patch): pass", "has no TITLE, CONTRACT"),
        ("COMPONENT = 'fsdp'\ndef apply(patch): pass", "COMPONENT is none of fully_shard, FSDP1"),
        ("WEIGHT = 'grave'\ndef apply(patch): pass", "WEIGHT is none of bug, exotic, limitation"),
        ("", "a mend has EDITS or apply()"),
        ("SIGNATURES = ('crash/*',)\ndef apply(patch): pass", "a mend has EDITS or apply()"),
        ("KIND = 'tripwire'", "a tripwire has EDITS or apply()"),
        ("KIND = 'signature'\ndef apply(patch): pass", "a signature has SIGNATURES"),
        ("KIND = 'signature'", "a signature has SIGNATURES"),
        ("raise ValueError('not today')", "ValueError: not today"),
        ("def apply(patch) pass", "SyntaxError"),
    ],
)
def test_a_badly_made_mend_is_one_line_that_names_it(tmp_path: Path, body: str, said: str) -> None:
    file = mend_file(tmp_path, "badly_made", body)
    with pytest.raises(UsageError) as caught:
        mend_from(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mends", "tripwires"])
def test_a_kind_of_mend_that_there_is_not_is_said(tmp_path: Path, kind: str) -> None:
    file = mend_file(tmp_path, "badly_made", f"KIND = {kind!r}\ndef apply(patch): pass")
    with pytest.raises(UsageError, match="KIND"):
        mend_from(file)


def test_a_folder_without_mends_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no mend"):
        mends_for(extra=[tmp_path / "typo"])


ELSEWHERE = re.compile("issue|PR |docs/|Introduction")
"""What is said of the source of a promise that torch's package does not have."""


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


@pytest.fixture(scope="module")
def said_by_torch() -> str:
    """The letters of all of torch's Python: what lines and markup are between words does not
    count.
    """
    folder = Path(find_function("torch.utils.checkpoint:set_checkpoint_early_stop").file).parents[
        1
    ]
    return "".join(
        letters(file.read_text(errors="replace")) for file in sorted(folder.rglob("*.py"))
    )


@each_mend
def test_torch_says_what_a_mend_quotes(said_by_torch: str, slug: str) -> None:
    mend = own_mends()[slug]
    if ELSEWHERE.search(mend.contract.source) or not mend.torch.include():
        pytest.skip("said elsewhere, or by another release")
    for part in mend.contract.quote.split("[...]"):
        assert letters(part) in said_by_torch, part

"""The plugin in pytest runs of their own, most of them without ranks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest
import verdicts
from msgspec.structs import replace
from verdicts import PASS, TORCH, FakeWorld, divergence

from fuzzshard import pytest_entries, pytest_plugin
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.doctor import PLANTED_FAULT, clean_case
from fuzzshard.mending.mend import mends_for
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import world as worlds
from fuzzshard.world.config import WorldConfig

pytest_plugins = ("pytester",)

LOADED = (pytest_entries,)
"""A run in this process forgets what it imports: what is patched must be loaded before it."""

TREE = Path(__file__).parents[2]
ENTRY_POINTS = importlib.metadata.entry_points(group="pytest11")
INSTALLED = any(point.value == pytest_plugin.__name__ for point in ENTRY_POINTS)
PLUGIN = () if INSTALLED else ("-p", pytest_plugin.__name__)
REAL_FINDING = "divergence-fsdp1-warning-0f6bb6cd"
"""All releases that are supported have it."""
UPSTREAM_FIX = '''\
"""As a release would fix it: nobody is warned of an order that does not differ."""

from torch.distributed.fsdp._exec_order_utils import _ExecOrderData

_ExecOrderData._check_order = lambda self, handle, is_training: None
'''

STUCK = """\
from pathlib import Path
import torch

def stuck(*_, **__):
    Path(__file__).with_suffix(".reached").touch()
    while True:
        pass

torch.nn.Linear.forward = stuck
"""

DIVERGENCE = divergence(observed="1.5", expected="2.5", op=2, name="up.weight")


def entry(num_ranks: int = 2, **changes: object) -> CorpusEntry:
    return verdicts.entry(clean_case(num_ranks), DIVERGENCE, torch=TORCH, **changes)


def save(corpus: Path, name: str, saved: CorpusEntry) -> None:
    write_atomic(corpus / "findings" / name / "case.json", encode_entry(saved))
    write_atomic(corpus / "findings" / name / "repro.py", b"raise SystemExit('not a test')\n")


def save_bare(corpus: Path, name: str, case: Case) -> None:
    write_atomic(corpus / "regressions" / f"{name}.json", codec.encode(case))


@pytest.fixture
def corpus(pytester: pytest.Pytester) -> Path:
    """An open finding, and cases that are to pass on one rank and on two."""
    folder = pytester.path / "corpus"
    save(folder, "open-one", entry(issue="https://github.com/x/y/issues/7"))
    save_bare(folder, "alone", clean_case(1))
    save_bare(folder, "pair", clean_case(2))
    return folder


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """Replaces the world; what it answers is set in ``answers``."""
    made = FakeWorld(PASS, torch=TORCH)

    def start(config: WorldConfig) -> FakeWorld:
        made.config = config
        made.sizes.append(config.size)
        return made

    monkeypatch.setattr(worlds, "World", start)
    return made


def run(pytester: pytest.Pytester, *words: object) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        *PLUGIN,
        "-p",
        "no:hypothesispytest",
        "--fuzzshard-device",
        "cpu",
        *map(str, words),
        no_reraise_ctrlc=True,
    )


def run_corpus(pytester: pytest.Pytester, *words: object) -> pytest.RunResult:
    return run(pytester, "--fuzzshard-corpus", "corpus", *words)


def test_nothing_happens_unless_a_corpus_is_asked_for(
    pytester: pytest.Pytester, corpus: Path
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*fuzzshard:*")


@pytest.mark.usefixtures("corpus")
def test_there_is_an_item_for_each_entry_named_after_its_path(
    pytester: pytest.Pytester, world: FakeWorld
) -> None:
    result = run_corpus(pytester, "--collect-only", "-q")
    result.stdout.fnmatch_lines(
        [
            "corpus/findings/open-one/case.json::replay",
            "corpus/regressions/alone.json::replay",
            "corpus/regressions/pair.json::replay",
        ]
    )
    assert world.sizes == []


@pytest.mark.usefixtures("corpus")
def test_an_open_finding_is_an_expected_failure_with_its_issue(
    pytester: pytest.Pytester, world: FakeWorld
) -> None:
    world.answers = [DIVERGENCE, PASS]
    result = run_corpus(pytester, "-rx")
    result.assert_outcomes(xfailed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "XFAIL*open: divergence/fully_shard/gradient, bad on torch *, https://github.com/x/y/issues/7"
        ]
    )
    assert result.ret == 0


def test_a_known_bug_is_told_by_its_title(
    pytester: pytest.Pytester, world: FakeWorld, corpus: Path
) -> None:
    save(corpus, "open-one", entry(cause="divide_factor_divides_twice"))
    world.answers = [DIVERGENCE, PASS]
    result = run_corpus(pytester, "-rx")
    result.stdout.fnmatch_lines(
        [
            "XFAIL*open: set_gradient_divide_factor: gradients are divided twice when the shard "
            "axis has size 1 (divergence/fully_shard/gradient), bad on torch *"
        ]
    )


@pytest.mark.usefixtures("corpus", "world")
def test_an_open_finding_that_is_gone_is_red_until_its_entry_is_updated(
    pytester: pytest.Pytester,
) -> None:
    result = run_corpus(pytester)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "*XPASS(strict)*open: divergence/fully_shard/gradient*",
            "*is gone in torch*",
            "to accept that: fuzzshard replay corpus/findings/open-one --update",
        ]
    )


@pytest.mark.parametrize(
    ("lifecycle", "verdict", "outcome"),
    [
        (Lifecycle.FIXED, PASS, "passed"),
        (Lifecycle.FIXED, DIVERGENCE, "failed"),
        (Lifecycle.WONTFIX, DIVERGENCE, "xfailed"),
        (Lifecycle.WONTFIX, PASS, "failed"),
        (Lifecycle.FLAKY, DIVERGENCE, "xfailed"),
        (Lifecycle.FLAKY, PASS, "skipped"),
    ],
)
def test_the_lifecycle_says_what_is_red(
    pytester: pytest.Pytester,
    world: FakeWorld,
    lifecycle: Lifecycle,
    verdict: Verdict,
    outcome: str,
) -> None:
    save(pytester.path / "corpus", "x", entry(lifecycle=lifecycle, bad_on=(), good_on=()))
    world.answers = [verdict]
    run_corpus(pytester).assert_outcomes(**{outcome: 1})


def test_a_finding_where_none_is_expected_is_drawn_without_a_traceback(
    pytester: pytest.Pytester, world: FakeWorld
) -> None:
    save_bare(pytester.path / "corpus", "pair", clean_case(2))
    world.answers = [DIVERGENCE]
    result = run_corpus(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "CHANGED: divergence/fully_shard/gradient, was no finding",
            "*Observed against expected*",
            "*gradient of fully_shard, up.weight*",
            "*observed  1.5*",
            "*expected  2.5*",
            "*Schedule*",
            "*fuzzshard replay corpus/regressions/pair.json*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_entries.py*")
    short = run_corpus(pytester, "--tb=short")
    short.stdout.fnmatch_lines(["*gradient of fully_shard, up.weight*", "*observed  1.5*"])
    short.stdout.no_fnmatch_line("*Schedule*")


@pytest.mark.parametrize(
    ("verdict", "outcome", "text"),
    [
        (
            Verdict(status=Status.INFRA, message="rank 1 was killed"),
            "failed",
            "*INFRA: rank 1 was killed*",
        ),
        (Verdict(status=Status.INCONCLUSIVE, message="noise"), "skipped", "*inconclusive: noise*"),
        (Verdict(status=Status.REJECTED), "passed", "*1 passed*"),
    ],
)
def test_what_accuses_nobody(
    pytester: pytest.Pytester, world: FakeWorld, verdict: Verdict, outcome: str, text: str
) -> None:
    save_bare(pytester.path / "corpus", "pair", clean_case(2))
    world.answers = [verdict]
    result = run_corpus(pytester, "-rs")
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines([text])


def test_what_this_machine_cannot_run_is_skipped_with_the_reason(
    pytester: pytest.Pytester, world: FakeWorld
) -> None:
    folder = pytester.path / "corpus"
    save_bare(folder, "large", replace(clean_case(2), mesh=replace(clean_case(2).mesh, shard=64)))
    save(folder, "cuda", entry(device="cuda"))
    result = run_corpus(pytester, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*needs 64 ranks, not 8*"])
    result.stdout.fnmatch_lines(["*was found on CUDA*"])
    assert world.sizes == []


@pytest.mark.usefixtures("world")
def test_a_file_that_cannot_be_read_fails_in_one_line_and_the_rest_runs(
    pytester: pytest.Pytester, corpus: Path
) -> None:
    write_atomic(corpus / "regressions" / "broken.json", b'{"format": 99}')
    result = run_corpus(pytester, "-k", "regressions")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["FAILED corpus/regressions/broken.json::replay - INVALID: its format is 99*"]
    )


@pytest.mark.usefixtures("world")
def test_a_corpus_without_a_case_is_said_beside_tests_that_pass(pytester: pytest.Pytester) -> None:
    pytester.mkdir("corpus")
    pytester.makepyfile("def test_it(): pass")
    result = run_corpus(pytester, "-q", ".")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*fuzzshard: */corpus has no case, so nothing of it is tested"])


@pytest.mark.usefixtures("corpus")
def test_one_world_serves_all_and_grows_with_the_mesh(
    pytester: pytest.Pytester, world: FakeWorld
) -> None:
    run_corpus(pytester, "-k", "regressions")
    assert (world.sizes, world.closed) == ([1, 2], 2)


@pytest.mark.usefixtures("corpus")
def test_an_interrupted_run_ends_its_world(pytester: pytest.Pytester, world: FakeWorld) -> None:
    world.answers = [KeyboardInterrupt()]
    assert run_corpus(pytester).ret == pytest.ExitCode.INTERRUPTED
    assert world.closed == 1


@pytest.mark.usefixtures("corpus", "world")
@pytest.mark.parametrize(
    ("words", "outcomes"),
    [
        (("-k", "open"), {"xfailed": 1, "deselected": 2}),
        (("-k", "divergence and fully_shard"), {"xfailed": 1, "deselected": 2}),
        (("-k", "pair"), {"failed": 1, "deselected": 2}),
        (("-m", "gpus(n=1)"), {"failed": 1, "deselected": 2}),
        (("-m", "fuzzshard", "-x"), {"xfailed": 1, "failed": 1}),
        (("--strict-markers", "-m", "not fuzzshard"), {"deselected": 3}),
    ],
)
def test_entries_are_selected_as_tests_are(
    pytester: pytest.Pytester,
    world: FakeWorld,
    words: tuple[str, ...],
    outcomes: dict[str, int],
) -> None:
    world.answers = [DIVERGENCE]
    run_corpus(pytester, *words).assert_outcomes(**outcomes)


@pytest.mark.usefixtures("corpus")
def test_the_last_failures_run_again(pytester: pytest.Pytester, world: FakeWorld) -> None:
    world.answers = [DIVERGENCE, DIVERGENCE, PASS]
    run_corpus(pytester).assert_outcomes(xfailed=1, failed=1, passed=1)
    run_corpus(pytester, "--lf").assert_outcomes(passed=1)


@pytest.mark.usefixtures("corpus")
def test_junit_has_a_test_case_for_each_entry(pytester: pytest.Pytester, world: FakeWorld) -> None:
    world.answers = [DIVERGENCE, PASS]
    run_corpus(pytester, "--junit-xml", "junit.xml")
    classes = [
        case.get("classname") for case in ET.parse(pytester.path / "junit.xml").iter("testcase")
    ]
    assert classes == [
        "corpus.findings.open-one.case.json",
        "corpus.regressions.alone.json",
        "corpus.regressions.pair.json",
    ]


@pytest.mark.usefixtures("corpus", "world")
def test_the_corpus_runs_alone_unless_paths_are_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    run_corpus(pytester, "-k", "not open").assert_outcomes(passed=2, deselected=1)
    run_corpus(pytester, pytester.path, "-k", "not open").assert_outcomes(passed=3, deselected=1)


@pytest.mark.usefixtures("corpus", "world")
def test_a_node_id_runs_that_entry_alone(pytester: pytest.Pytester) -> None:
    run_corpus(pytester, "corpus/regressions/pair.json::replay").assert_outcomes(passed=1)


@pytest.mark.usefixtures("corpus", "world")
@pytest.mark.parametrize(
    "line", ["fuzzshard_corpus = corpus", "addopts = --fuzzshard-corpus corpus"]
)
def test_a_corpus_in_the_configuration_comes_along_with_all_tests(
    pytester: pytest.Pytester, line: str
) -> None:
    pytester.makepyfile(test_mine="def test_it(): pass")
    pytester.makeini(f"[pytest]\n{line}\n")
    run(pytester, "-k", "not open").assert_outcomes(passed=3, deselected=1)
    run(pytester, "test_mine.py").assert_outcomes(passed=1)
    run(pytester, "corpus/regressions/pair.json").assert_outcomes(passed=1)


@pytest.mark.usefixtures("corpus", "world")
def test_scripts_of_a_corpus_are_no_tests(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npython_files = *.py\n")
    run_corpus(pytester, "-k", "not open").assert_outcomes(passed=2, deselected=1)


@pytest.mark.usefixtures("corpus", "world")
def test_the_header_names_versions_device_and_preloads(pytester: pytest.Pytester) -> None:
    result = run_corpus(pytester, "--fuzzshard-preload", __file__)
    result.stdout.fnmatch_lines(
        [f"fuzzshard: *, torch {TORCH}, cpu, * has its own seed; preloaded: {__file__}"]
    )


def test_a_known_finding_is_an_expected_failure_where_none_is_expected(
    pytester: pytest.Pytester, world: FakeWorld
) -> None:
    save_bare(pytester.path / "corpus", "pair", clean_case(2))
    world.answers = [DIVERGENCE]
    run_corpus(pytester).assert_outcomes(failed=1)
    run_corpus(pytester, "--fuzzshard-known").assert_outcomes(failed=1)
    world.cured_by = mends_for()[0]
    run_corpus(pytester).assert_outcomes(failed=1)
    result = run_corpus(pytester, "--fuzzshard-known", "-rx")
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines([f"*divergence/fully_shard/gradient, caused by {world.cured_by}*"])


def test_a_mesh_larger_than_the_node_runs_where_ranks_may_share_devices(
    pytester: pytest.Pytester, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.world.device.resolve_device", lambda device: ("cuda", 2))
    wide = replace(clean_case(2), mesh=replace(clean_case(2).mesh, shard=4))
    save_bare(pytester.path / "corpus", "wide", wide)
    run_corpus(pytester).assert_outcomes(skipped=1)
    assert world.sizes == []
    run_corpus(pytester, "--fuzzshard-ranks-per-device", "2").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--fuzzshard-corpus", "nowhere"), "*nowhere does not exist*"),
        (
            ("--fuzzshard-corpus", ".", "--fuzzshard-preload", "missing.py"),
            "*missing.py*is not a file*",
        ),
        (
            ("--fuzzshard-corpus", ".", "--fuzzshard-deadline", "soon"),
            "*'soon' is not a duration*",
        ),
        (
            ("--fuzzshard-corpus", ".", "--fuzzshard-ranks-per-device", "0"),
            "*0 ranks per device*1 or more*",
        ),
    ],
)
def test_a_mistake_is_one_line(
    pytester: pytest.Pytester, words: tuple[str, ...], text: str
) -> None:
    result = run(pytester, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: fuzzshard: {text}"])


def command(*words: object) -> list[str]:
    plain = ("-p", "no:cacheprovider", "--fuzzshard-device", "cpu")
    return [sys.executable, "-m", "pytest", *PLUGIN, *plain, *map(str, words)]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(TREE)}


def outside(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, with real ranks where it needs any."""
    return subprocess.run(
        command(*words),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_collecting_imports_no_torch_and_plain_pytest_nothing_of_ours(tmp_path: Path) -> None:
    conftest = "import sys\ndef pytest_unconfigure(): print('IMPORTED', sorted(sys.modules))\n"
    (tmp_path / "conftest.py").write_text(conftest)
    save_bare(tmp_path / "corpus", "pair", clean_case(2))

    def imported(*words: str) -> set[str]:
        out = outside(tmp_path, "--collect-only", "-q", *words).stdout
        (line,) = (line for line in out.splitlines() if line.startswith("IMPORTED"))
        return set(json.loads(line.removeprefix("IMPORTED ").replace("'", '"')))

    assert "torch" not in imported("--fuzzshard-corpus", "corpus")
    ours = {name for name in imported() if name.startswith("fuzzshard")}
    assert ours <= {"fuzzshard", "fuzzshard.pytest_plugin"}


@pytest.fixture(scope="module")
def real_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finding that stock torch has, and a case that it passes."""
    folder = tmp_path_factory.mktemp("real")
    save_bare(folder / "corpus", "clean", clean_case(2))
    case = Path("corpus", "findings", REAL_FINDING, "case.json")
    write_atomic(folder / case, (TREE / case).read_bytes())
    return folder


def test_stock_torch_is_green(pytester: pytest.Pytester, real_corpus: Path) -> None:
    result = run(pytester, "--fuzzshard-corpus", real_corpus / "corpus")
    result.assert_outcomes(passed=1, xfailed=1)


@pytest.mark.slow
def test_a_planted_fault_turns_what_passed_red(real_corpus: Path) -> None:
    (real_corpus / "fault.py").write_text(PLANTED_FAULT.read_text())
    result = outside(
        real_corpus, "--fuzzshard-corpus", "corpus", "--fuzzshard-preload", "fault.py"
    )
    assert "1 failed, 1 xfailed" in result.stdout
    assert "CHANGED: divergence/fully_shard/gradient, was no finding" in result.stdout
    assert result.returncode == 1


def test_a_fix_of_torch_turns_an_open_finding_red(
    pytester: pytest.Pytester, real_corpus: Path
) -> None:
    (real_corpus / "fix.py").write_text(UPSTREAM_FIX)
    preload = ("--fuzzshard-preload", real_corpus / "fix.py")
    result = run(pytester, "--fuzzshard-corpus", real_corpus / "corpus", *preload)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["[[]XPASS(strict)[]] open: FSDP1*(divergence/fsdp1/warning*"])


def test_ctrl_c_leaves_no_rank_behind(real_corpus: Path) -> None:
    (real_corpus / "stuck.py").write_text(STUCK)
    words = command("--fuzzshard-corpus", "corpus/regressions", "--fuzzshard-preload", "stuck.py")
    process = subprocess.Popen(
        words,
        cwd=real_corpus,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    me = psutil.Process(process.pid)
    while not (real_corpus / "stuck.reached").exists():
        assert process.poll() is None
        time.sleep(0.01)
    family = me.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert len(gone) >= 3  # the fork server and the ranks
    assert alive == []

"""The pytest plugin: ``pytest --fuzzshard-corpus corpus/`` replays every entry of a corpus as a
test.

Every pytest run of anyone who has fuzzshard installed imports this module, so it imports nothing
but pytest until a corpus is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fuzzshard.pytest_entries import CorpusRun, EntryFile

_OPTION = "--fuzzshard-corpus"
SUBJECT_MARKER = (
    "fuzzshard(meshes, require, fuzz, ...): the test returns a fuzzshard.testing.Subject, "
    "which is checked; takes what fuzzshard.testing.check takes; "
    "fuzz='1m' also trains it in random ways for so long"
)
RUN_KEY: pytest.StashKey[CorpusRun] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in a group of their own."""
    group = parser.getgroup("fuzzshard", "parity of PyTorch's data-parallel training")
    group.addoption(
        _OPTION,
        action="append",
        default=[],
        metavar="PATH",
        help="replay the entries of this corpus, entry or case file; only these unless other "
        "paths are given",
    )
    group.addoption(
        "--fuzzshard-device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where the ranks run; auto is CUDA with NCCL where there is any, else the CPU with "
        "gloo",
    )
    group.addoption(
        "--fuzzshard-ranks-per-device",
        type=int,
        default=1,
        metavar="K",
        help="ranks of a case that may share a CUDA device, for meshes larger than the node: "
        "slower by far",
    )
    group.addoption(
        "--fuzzshard-preload",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that every rank runs first",
    )
    group.addoption(
        "--fuzzshard-known",
        action="store_true",
        help="a case that should pass is expected to fail where known bugs of torch cause what it "
        "shows",
    )
    group.addoption(
        "--fuzzshard-allow-user-code",
        action="store_true",
        help="run findings of fuzzshard check --fuzz, too: they import and run the functions that "
        "they name",
    )
    group.addoption(
        "--fuzzshard-deadline",
        default=None,
        metavar="TIME",
        help="how long a case may take before it is a hang: 30s, 2m; by default learned from "
        "earlier cases, and 5m for one that is expected to pass",
    )
    parser.addini(
        "fuzzshard_corpus", "a corpus to replay along with the tests", type="paths", default=[]
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set up, where a corpus is asked for, markers, the shared world, and the paths to collect."""
    config.addinivalue_line("markers", SUBJECT_MARKER)
    given = [config.invocation_params.dir / path for path in config.getoption(_OPTION)]
    roots = list(dict.fromkeys([*given, *config.getini("fuzzshard_corpus")]))
    if not roots:
        return
    from fuzzshard.errors import FuzzshardError
    from fuzzshard.pytest_entries import MARKERS, CorpusRun

    try:
        run = CorpusRun(config, roots)
    except (FuzzshardError, ValueError) as error:
        raise pytest.UsageError(f"fuzzshard: {error}") from None
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[RUN_KEY] = run
    config.add_cleanup(run.close)
    _add_paths(config, given, roots)


def _add_paths(config: pytest.Config, given: list[Path], roots: list[Path]) -> None:
    """Adds the corpus to what is collected.

    Asked for on the command line it is collected in any case, and alone where no other path is
    given. From a configuration file (``addopts`` or ``fuzzshard_corpus``) it comes along with a
    run of all tests. Who gives a path inside a corpus means that part of it.
    """
    typed = any(str(word).startswith(_OPTION) for word in config.invocation_params.args)
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        start = config.invocation_params.dir
        paths = [start / word.partition("::")[0] for word in config.args]
        parts = [root for root in given if any(path.is_relative_to(root) for path in paths)]
        config.args += [str(root) for root in given if typed and root not in parts]
    elif typed:
        config.args[:] = map(str, given)
    else:
        config.args += map(str, roots)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Checks the model that a marked test returns (:mod:`fuzzshard.testing`)."""
    __tracebackhide__ = True
    marker = pyfuncitem.get_closest_marker("fuzzshard")
    if marker is None:
        return None
    from fuzzshard.options import parse_duration
    from fuzzshard.testing import Subject, check

    names = pyfuncitem._fixtureinfo.argnames
    subject = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    if not isinstance(subject, Subject):
        pytest.fail("a test that is marked with fuzzshard returns a fuzzshard.testing.Subject")
    options = dict(marker.kwargs)
    required = options.pop("require", "rounding")
    if "fuzz" in options:
        try:
            options["fuzz"] = parse_duration(str(options["fuzz"]))
        except ValueError as error:
            pytest.fail(f"fuzz={error}", pytrace=False)
    check(subject, **options).require(required)
    return True


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return the versions and the device that the cases run on."""
    run = config.stash.get(RUN_KEY, None)
    return run.header() if run else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the scripts of a corpus, which are no tests, whatever ``python_files`` says."""
    run = config.stash.get(RUN_KEY, None)
    if run and collection_path.suffix == ".py" and run.holds(collection_path):
        return True
    return None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> EntryFile | None:
    """Return one collector for each entry below the corpora that were asked for."""
    run = parent.config.stash.get(RUN_KEY, None)
    if run is None or not (run.is_subject(file_path) or run.is_entry(file_path)):
        return None
    from fuzzshard.pytest_entries import EntryFile

    return EntryFile.from_parent(parent, path=file_path, corpus_run=run)

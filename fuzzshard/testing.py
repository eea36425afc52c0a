"""For your own tests: ``check(Subject(...))`` for a model, ``assert_parity(case)`` for cases.

A model of your own (``docs/check-your-own-model.md``):

    report = check(Subject(build=build, inputs=batch, parallelize=apply_fsdp), ["dp_shard=2"])
    report.require("bitwise")

A case, under Hypothesis or written by hand:

    from hypothesis import given, settings

    from fuzzshard.strategies import cases, meshes
    from fuzzshard.testing import assert_parity

    @settings(deadline=None, max_examples=50)
    @given(cases(mesh=meshes(max_ranks=2)))
    def test_sharding_changes_nothing(case):
        assert_parity(case)

This module imports no torch. The ranks are other processes, which start with the first case, serve
all tests of this process, and end with it; those of a check end with the check.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fuzzshard.campaign.explain import known_causes
from fuzzshard.campaign.judge import judge, same_finding
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.checking.check import DEFAULT_MESHES, Checker, trainings
from fuzzshard.checking.fuzz import Fuzzer, bases_of, check_aspects
from fuzzshard.corpus.entry import make_entry
from fuzzshard.errors import InfraError, UsageError
from fuzzshard.mending.mend import mends_for
from fuzzshard.options import Device, RankOptions
from fuzzshard.report.show import drawn
from fuzzshard.subject.report import Report
from fuzzshard.subject.subject import ASPECTS, Aspect, MeshShape
from fuzzshard.subject.subject import Subject as NamedSubject
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.world import SUBJECT_SECONDS, SharedWorld

__all__ = ["Report", "Subject", "assert_parity", "check"]

_worlds: dict[WorldConfig, SharedWorld] = {}
_lock = threading.Lock()


def check(
    subject: Subject,
    meshes: Sequence[str] = tuple(map(str, DEFAULT_MESHES)),
    *,
    engines: Sequence[str] = (),
    steps: int = 3,
    microbatches: int = 1,
    seed: int = 0,
    global_batch: bool = False,
    device: Device = "auto",
    ranks_per_device: int = 1,
    max_seconds: float = SUBJECT_SECONDS,
    fuzz: float = 0.0,
    max_cases: int | None = None,
    aspects: Sequence[Aspect] = ASPECTS,
) -> Report:
    """Train a subject in each mesh, plain and parallelised, and compare.

    Write ``meshes`` as ``dp_replicate=2,dp_shard=2``. ``engines`` wrap the model if the subject
    has no ``parallelize``. With ``global_batch`` the plain model gets the batches of all ranks as
    one. A training that takes longer than ``max_seconds`` counts as hung.
    Raises :class:`UsageError` for arguments that cannot be used and :class:`InfraError` if ranks
    fail.

    If all are equal, it is then trained in random ways, until ``fuzz`` seconds have passed since
    the call or ``max_cases`` have run, and each finding is in the report, shrunk. ``aspects`` are
    what may change: plan, freeze, mesh, schedule, precision; one that cannot is an error, unless
    all are given.
    """
    shapes = [MeshShape.parse(mesh) for mesh in meshes]
    runs = trainings(
        subject.named,
        shapes,
        engines,
        steps=steps,
        microbatches=microbatches,
        seed=seed,
        global_batch=global_batch,
    )
    if fuzz and global_batch:
        raise UsageError("fuzz and global_batch cannot be combined", "use one of them")
    if fuzz:
        check_aspects(aspects, runs)
    size = max((training.size for training in runs), default=1)
    config = RankOptions(device=device, ranks_per_device=ranks_per_device).config(size, of="mesh")
    until = time.monotonic() + fuzz
    with Checker(subject.named, config, max_seconds) as checker:
        done = tuple(map(checker.run, runs))
        if not (fuzz and (bases := bases_of(done))):
            return Report(trainings=done)
        fuzzer = Fuzzer(
            checker,
            bases,
            aspects,
            max_cases=max_cases,
            max_time=until - time.monotonic(),
            number=seed,
        )
        return Report(trainings=(*done, *fuzzer.findings()))


def assert_parity(
    case: Case,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    deadline: float | None = None,
    preload: Sequence[Path] = (),
    known: bool = False,
    extra_mends: Sequence[Path] = (),
    ranks_per_device: int = 1,
) -> Verdict:
    """Run ``case``, and raise ``AssertionError`` if sharding changes what is trained.

    The error message has observed against expected values, the case drawn as ``fuzzshard show``
    does, and its JSON. A finding counts if a second run, on fresh ranks, shows it too.

    Otherwise the verdict is returned: PASS; REJECTED, where torch refuses the case with a
    documented error; INCONCLUSIVE, where the finding did not come back on fresh ranks. None of the
    three is a reason to fail a test. To keep only cases that trained to the end, write
    ``assume(verdict.status is Status.PASS)``.

    With ``known``, a finding that known bugs of torch cause is returned too: it goes away with
    fuzzshard's mends (:mod:`fuzzshard.mends`) or with those in the folders ``extra_mends``.

    A case that takes longer than ``deadline`` seconds counts as a hang; by default the deadline is
    learned. Every rank runs the files in ``preload`` before anything else. At most
    ``ranks_per_device`` ranks share a CUDA device, for meshes larger than the node, which is much
    slower. Raises :class:`fuzzshard.errors.InvalidCase` and :class:`fuzzshard.errors.UsageError`
    for what cannot run here or does not exist, and :class:`fuzzshard.errors.InfraError` if ranks
    fail through no fault of torch.
    """
    __tracebackhide__ = True
    mends = mends_for(extra=extra_mends) if known else ()
    ranks = RankOptions(device=device, ranks_per_device=ranks_per_device, preload=tuple(preload))
    config = ranks.config(1)
    with _lock:
        shared = _worlds.setdefault(config, SharedWorld(config))
        world = shared.with_ranks(min(case.mesh.size, ranks.most))
        world.check(case)
        try:
            verdict = _judged(world, case, deadline)
            is_known = verdict.status.is_finding and bool(
                known_causes(mends, world, case, verdict)
            )
        except BaseException:  # Ctrl-C: what the ranks still answer belongs to no later case
            shared.close()
            raise
    if verdict.status is Status.INFRA:
        raise InfraError(verdict.message, "run fuzzshard doctor")
    if verdict.status.is_finding and not is_known:
        raise AssertionError(_explained(case, verdict, world))
    return verdict


def _judged(world: World, case: Case, deadline: float | None) -> Verdict:
    """Return the verdict of one run; a finding must come back on fresh ranks."""
    verdict = judge(world, case, deadline=deadline)
    if not verdict.status.is_finding or same_finding(judge(world, case, fresh=True), verdict):
        return verdict
    gone = f"{verdict.signature} did not come back on fresh ranks"
    return Verdict(status=Status.INCONCLUSIVE, message=gone)


def _explained(case: Case, verdict: Verdict, world: World) -> str:
    """Says what happened, draws the case, and ends with what to do with it."""
    entry = make_entry(case, verdict, world.info, preload=world.config.preload)
    return "\n".join(
        (
            f"{verdict.status} {verdict.signature}",
            "",
            drawn(entry, Path("case.json")),
            "",
            "To keep it, write the next line to case.json and run fuzzshard shrink case.json:",
            codec.encode(case).decode(),
        )
    )


Function = Callable[..., Any] | str


class Subject:
    """A model and how it is trained: what ``fuzzshard check`` is given.

    Functions are given themselves or by name. They run on ranks, which are other processes, so
    each must be found at the top level of a module. With pytest, a test that is marked returns a
    subject::

        @pytest.mark.fuzzshard(meshes=["dp_shard=2"], require="bitwise")
        def test_my_model():
            return Subject(build=build, inputs=batch)

    Raises :class:`UsageError` for a function that other processes cannot import.
    """

    def __init__(
        self,
        *,
        build: Function,
        inputs: Function,
        loss: Function | None = None,
        parallelize: Function | None = None,
        optimizer: Function | None = None,
        train_step: Function | None = None,
        loss_weight: Function | None = None,
        smaller: Function | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """``names`` are the plain names of parameters that ``parallelize`` renames."""
        given = {f: g for f, g in locals().items() if g is not None and f not in ("self", "names")}
        functions = {field: name_of(function) for field, function in given.items()}
        self.named = NamedSubject(names=dict(names or {}), **functions)


def name_of(function: Function) -> str:
    """Return the name by which a rank can import ``function``; raises :class:`UsageError`."""
    if isinstance(function, str):
        return function
    module, name = function.__module__, function.__qualname__
    file = inspect.getsourcefile(function)
    if "<" in name or file is None:
        raise UsageError(
            f"ranks, which are other processes, cannot import {name}",
            "define it at the top level of a module",
        )
    return f"{file if module == '__main__' else module}:{name}"

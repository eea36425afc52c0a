"""The state of one run of a campaign: its counts, its settings, and the findings it knows.

Both the journal of the run before and the corpus tell it what is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from fuzzshard import __version__
from fuzzshard.analysis.features import ALL_FEATURES
from fuzzshard.campaign.backlog import Backlog, Suspicion
from fuzzshard.campaign.control import Control, ControlledCheck, cpu_ranks
from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.campaign.finding_store import FindingStore
from fuzzshard.campaign.known import Found, Known, Registry, load_known
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.resume import (
    Plan,
    drop_saved_suspicions,
    in_work,
    restore_counts,
    restore_findings,
    unfinished,
)
from fuzzshard.campaign.tally import Tally
from fuzzshard.campaign.tools import Tools
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.lifecycle import release
from fuzzshard.corpus.store import FINDINGS_FOLDER
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE, EXIT_INFRA
from fuzzshard.events import (
    CampaignFinished,
    CampaignStarted,
    Continued,
    CorpusLoaded,
    Event,
    KnownFinding,
)
from fuzzshard.journal.history import History
from fuzzshard.mending.mend import mends_for
from fuzzshard.mending.source import unfit
from fuzzshard.runner import Runner, StartWorld
from fuzzshard.strategies.steered import Steered
from fuzzshard.verdict import Status
from fuzzshard.world.config import WorldConfig


class Session:
    """The state of a campaign for as long as one process works on it; its parts may be used from
    any thread.

    A campaign that is continued counts on from where its earlier sessions were; what these found
    and did not get done waits first in the ``backlog``.
    """

    store: FindingStore
    cases: Prefetch
    on_cpu: StartWorld | None

    def __init__(
        self,
        options: CampaignOptions,
        configs: tuple[WorldConfig, ...],
        plan: Plan,
        steered: Steered,
    ) -> None:
        self.options = options
        self.steered = steered
        self.configs = configs
        self.config = configs[0]  # worlds differ in their devices only
        self.plan = plan
        self.control = Control(
            options.max_time,
            stop_after_no_new=options.stop_after_no_new,
            before=plan.elapsed,
            quiet=plan.quiet,
        )
        self.tally = Tally()
        self.registry = Registry()
        self.mends = mends_for(extra=options.extra_mends) if options.mends != "off" else ()
        self._cases_before = 0
        self._unfinished: list[Found] = []
        self._of_others: tuple[str, ...] = ()
        self.backlog = Backlog(worlds=len(configs), followers=self.num_followers)

    def restore(self, history: History) -> None:
        """Take what the corpus has already: it needs no shrinking again, nor what this campaign
        did before.
        """
        corpus = self.options.corpus
        drop_saved_suspicions(corpus)
        left = in_work(corpus)
        self._unfinished = unfinished(
            history, self.plan, corpus, left, shrinking=self.options.shrink
        )
        self.backlog.put(*self._unfinished)
        own = [found.path for found in self._unfinished if found.path is not None]
        names = {path.name for path in own}
        self._of_others = tuple(name for name in left if name not in names)
        saved = load_known(
            corpus / FINDINGS_FOLDER,
            preload=self.config.preload,
            unfinished=own,
            mends=self.mends,
        )
        for known in saved.known:
            self.registry.learn(known)
        self.registry.num_explained = saved.num_explained
        self.registry.experience = saved.experience
        if (campaign := self.plan.campaign) is not None:
            self._cases_before = restore_counts(history, campaign, self.tally)
            restore_findings(history, campaign, self.registry)
        for found in self._unfinished:
            self.registry.count_made(found)
        limit, made = self.options.max_findings, self.registry.num_new
        if limit is not None and made >= limit:
            self.control.reason = self.registry.new_text()

    def equip(
        self, tools: Tools, make_world: Callable[[WorldConfig], AbstractContextManager[Runner]]
    ) -> None:
        """Makes what its worlds have in common; raises :class:`FuzzshardError` where the corpus
        cannot be read.
        """
        options, device = self.options, self.config.device
        check = ControlledCheck(tools.check, self.control)
        reduce = functools.partial(tools.reduce, check=check, wanted=self.control.running)
        self.store = FindingStore(options.corpus, options.preload, tools.render, check, reduce)
        self.on_cpu = cpu_ranks(self.config, make_world, self.control)
        stream = tools.cases(
            self.plan.stream_seed,
            world_size=self.config.size,
            steered=self.steered,
            cuda=device == "cuda",
        )
        limit = options.max_cases
        left = None if limit is None else max(0, limit - self._cases_before)
        self.cases = Prefetch(stream, ahead=2 * len(self.configs) + 2, limit=left)

    def started(self) -> Iterator[Event]:
        """Yield what is said before any world starts."""
        options = self.options
        yield CampaignStarted(
            elapsed=self.plan.elapsed,
            version=__version__,
            seed=self.plan.seed,
            corpus=str(options.corpus),
            exchange="" if options.exchange is None else str(options.exchange),
            world_size=self.config.size,
            worlds=len(self.configs),
            device=self.config.device,
            devices=tuple(config.devices for config in self.configs if config.devices),
            engines=options.steering.engines,
            steering=self.steered.text(),
            preload=self.config.preload,
            mends=options.mends,
            mends_unfit=unfit(self.mends),
            max_cases=options.max_cases,
            max_time=options.max_time,
            max_findings=options.max_findings,
            stop_after_no_new=options.stop_after_no_new,
            continues=self._continued() if self.plan.earlier else None,
            note=self.plan.note,
        )
        known = sum(known.saved_before for known in self.registry.all())
        explained = self.registry.num_explained
        if known or explained or self._of_others:
            yield CorpusLoaded(
                known=known,
                explained=explained,
                in_work=self._of_others,
                elapsed=self.control.elapsed(),
            )

    def _continued(self) -> Continued:
        return Continued(
            sessions=len(self.plan.earlier),
            ended=self.plan.earlier[-1].reason or "killed",
            cases=self._cases_before,
            elapsed=self.plan.elapsed,
            counts=dict(self.tally.counts),
            findings=self.registry.num_new,
            unfinished=len(self._unfinished),
        )

    def leave_unfinished(self) -> None:
        """Leave what no world went on with as it was found."""
        for item in self.backlog.drain():
            found = item.cut_off if isinstance(item, Suspicion) else item
            if found.path is not None:
                self.registry.leave_unresolved(found)

    @property
    def num_followers(self) -> int:
        """How many worlds follow up what the others find: a third, and one at least."""
        return max(1, len(self.configs) // 3)

    def wait_for_last_finding(self) -> None:
        """Waits while what is in work may be the last finding that the campaign was asked for."""
        if (limit := self.options.max_findings) is not None:
            self.backlog.wait_while_in_work(max(1, limit - self.registry.num_new))

    def finished(self, reason: str, exit_code: int, *, complete: bool) -> CampaignFinished:
        """Return the summary."""
        tally, registry = self.tally, self.registry
        return CampaignFinished(
            elapsed=(elapsed := self.control.elapsed()),
            reason=reason,
            exit_code=exit_code,
            seed=self.plan.seed,
            corpus=str(self.options.corpus),
            mends=self.options.mends,
            torch=release(installed_torch()),
            cases=tally.cases,
            cases_per_second=tally.cases / elapsed,
            counts=dict(tally.counts),
            findings=tuple(map(_line, _listed(registry))),
            explained=registry.experience.num_cases,
            causes=dict(registry.experience.cases.most_common()),
            unresolved=tuple(map(str, registry.unresolved)),
            suspects=tuple(map(str, registry.suspects)),
            features_seen=len(tally.features),
            features_total=len(ALL_FEATURES),
            features_unseen=tuple(sorted(set(ALL_FEATURES) - tally.features)),
            complete=complete,
        )

    def verdict_code(self) -> int:
        """Return the exit code of a campaign that was neither interrupted nor stopped by an error.

        What the corpus had before is no news: a campaign in CI would be red on every torch with an
        open finding.
        """
        tally, registry = self.tally, self.registry
        if registry.has_news:
            return EXIT_FINDING
        if tally.cases and tally.counts[Status.INFRA] == tally.cases:
            return EXIT_INFRA
        if not tally.cases or registry.num_flaky or tally.counts[Status.INCONCLUSIVE]:
            return EXIT_INCONCLUSIVE
        return EXIT_CLEAN


def _listed(registry: Registry) -> list[Known]:
    """Return what this campaign has met of the findings that are done; internal ones come last."""
    left = set(registry.unresolved)
    met = [
        known
        for known in registry.all()
        if (known.hits or not known.saved_before) and known.path not in left
    ]
    return sorted(met, key=lambda known: known.internal)


def _line(known: Known) -> KnownFinding:
    return KnownFinding(
        signature=known.signature,
        path=str(known.path),
        hits=known.hits,
        new=not known.saved_before,
        internal=known.internal,
        rate=known.confirmed.text() if known.confirmed.flaky else "",
    )

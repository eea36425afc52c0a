"""What one session of a campaign counts and knows, and takes over from the journal and the
corpus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fuzzshard import __version__
from fuzzshard.campaign.control import Control
from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.campaign.keep import Keeper
from fuzzshard.campaign.known import Found, Registry, load_known
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.resume import Plan, in_work, restore_counts, restore_findings, unfinished
from fuzzshard.campaign.shared import CaseStream, Shared
from fuzzshard.campaign.summary import summarize
from fuzzshard.campaign.tally import Tally
from fuzzshard.corpus.store import FINDINGS_FOLDER
from fuzzshard.events import (
    CampaignFinished,
    CampaignStarted,
    Continued,
    CorpusLoaded,
    Event,
)
from fuzzshard.journal.history import History
from fuzzshard.mending.mend import mends_for
from fuzzshard.mending.source import unfit
from fuzzshard.runner import StartWorlds
from fuzzshard.strategies.steered import Steered
from fuzzshard.world.config import WorldConfig


class Session:
    """The state of a campaign for as long as one process works on it; its parts may be used from
    any thread.

    A campaign that is continued counts on from where its earlier sessions were.
    """

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
        self._unfinished: deque[Found] = deque()
        self._of_others: tuple[str, ...] = ()
        self.returned: deque[Found] = deque()

    def restore(self, history: History) -> None:
        """What the corpus has already needs no shrinking again, nor what this campaign did
        before.
        """
        corpus, left = self.options.corpus, in_work(self.options.corpus)
        self._unfinished.extend(
            unfinished(history, self.plan, corpus, left, shrinking=self.options.shrink)
        )
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
        self.registry.examples.update(saved.examples)
        if (campaign := self.plan.campaign) is not None:
            self._cases_before = restore_counts(history, campaign, self.tally)
            restore_findings(history, campaign, self.registry)
        for found in self._unfinished:
            self.registry.count_made(found)
        limit, made = self.options.max_findings, self.registry.num_new
        if limit is not None and made >= limit:
            self.control.reason = self.registry.new_text()

    def draw(self, cases: CaseStream) -> Prefetch:
        """The cases of this session, as many as the campaign still has to run."""
        stream = cases(
            self.plan.stream_seed,
            world_size=self.config.size,
            steered=self.steered,
            cuda=self.config.device == "cuda",
        )
        limit = self.options.max_cases
        left = None if limit is None else max(0, limit - self._cases_before)
        return Prefetch(stream, ahead=2 * len(self.configs) + 2, limit=left)

    def shared(self, cases: Prefetch, keeper: Keeper, on_cpu: StartWorlds | None) -> Shared:
        """What its worlds have in common."""
        return Shared(
            cases=cases,
            control=self.control,
            tally=self.tally,
            registry=self.registry,
            keeper=keeper,
            mends=self.mends,
            stock_too=self.options.mends == "both",
            confirm=self.options.confirm,
            unfinished=self._unfinished,
            returned=self.returned,
            shrinking=self.options.shrink,
            max_findings=self.options.max_findings,
            on_cpu=on_cpu,
        )

    def started(self) -> Iterator[Event]:
        """What is said before any world starts."""
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
        explained = sum(map(len, self.registry.examples.values()))
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
        """What no world went on with stays as it was found."""
        for found in (*self._unfinished, *self.returned):
            if found.path is not None:
                self.registry.leave_unresolved(found)

    def finished(self, reason: str, exit_code: int, *, complete: bool) -> CampaignFinished:
        """The summary."""
        return summarize(
            self.tally,
            self.registry,
            seed=self.plan.seed,
            corpus=self.options.corpus,
            mends=self.options.mends,
            elapsed=self.control.elapsed(),
            reason=reason,
            exit_code=exit_code,
            complete=complete,
        )

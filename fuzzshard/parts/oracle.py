"""What every oracle says of itself; generic code asks this, and never which oracle it is.

An oracle is a rule over what ranks record. Eleven of them compare a tensor of an engine with the
reference's (:class:`TensorOracle`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from typing_extensions import override

from fuzzshard.errors import UsageError

if TYPE_CHECKING:  # what an oracle is shown of the layers above, for types alone
    from fuzzshard.case.case import Case as Case
    from fuzzshard.reproducer.aim import Aim as Aim
    from fuzzshard.reproducer.alone import Alone as Alone
    from fuzzshard.reproducer.scope import Scope as Scope
    from fuzzshard.reproducer.watch import Watch as Watch
    from fuzzshard.training.observer import Observer as Observer
    from fuzzshard.verdict import Finding as Finding
    from fuzzshard.world.messages import RankReport as RankReport
else:  # nobody looks at annotations when it runs
    Aim = Alone = Case = Finding = Observer = RankReport = Scope = Watch = None

MISSING = "missing"
UNEXPECTED = "unexpected"
"""Details of a finding: the engine has no tensor where the reference has one, or the other way
round.
"""


NOT_REFUSED = "not refused"
"""Detail of a finding: the engine trains on where its documentation announces an error."""

PARAMETERS = "n, p in params.items()"
"""What comprehensions in scripts go over."""

LONGEST_STATEMENT = 105
"""The most characters of a statement in a function of a script."""

SAME_TYPE = 'assert observed == expected, f"rank {rank}: expected {expected}, observed {observed}"'


def lost(engine: str, detail: str) -> str:
    """The signature of what a lost collective shows as, by chance; empty for anything else."""
    return f"desync/{engine}" if detail in ("desync", "SIGABRT") else ""


def cut(text: str, length: int) -> str:
    """The beginning of ``text``, with dots where more follows."""
    return text if len(text) <= length else text[: length - 4].rstrip() + " ..."


class TensorType(NamedTuple):
    """What a tensor is, values aside; its text stands in findings."""

    shape: tuple[int, ...]
    dtype: str
    device: str = ""
    """Where two devices differ."""

    def __str__(self) -> str:
        place = f", on {self.device}" if self.device else ""
        return f"a tensor of shape {list(self.shape)}, {self.dtype}{place}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The type that has this text; None for any other text."""
        told = re.fullmatch(r"a tensor of shape \[([\d, ]*)\], ([\w.]+)(?:, on (.+))?", text)
        if told is None:
            return None
        return cls(tuple(map(int, re.findall(r"\d+", told[1]))), told[2], told[3] or "")

    @property
    def expression(self) -> str:
        """Shape and dtype as a tuple."""
        return f"({list(self.shape)}, {self.dtype})"


Loses = Literal["", "raised", "raised otherwise", "died", "hung"]
"""How ranks are lost: an engine raised, or raised another error than the expected one."""


class Oracle:
    """One rule. Where findings of it rest on an instrument, that is a name of
    :mod:`fuzzshard.instruments`.
    """

    name: ClassVar[str] = ""
    place: ClassVar[int] = 0
    """Its place among all, the one nearest to the cause first: that is primary when several rules
    break at one op.
    """
    loses: ClassVar[Loses] = ""
    of_values: ClassVar[bool] = True
    """Whether it says that something computed is wrong, and not how parameters are registered,
    say.
    """
    tells_apart: ClassVar[bool] = False
    """Whether each of its details is another kind of finding."""
    is_said: ClassVar[bool] = False
    """Whether torch says something: training does not go on in silence."""
    needs_finding: ClassVar[bool] = False
    """Whether a signature is not enough to write a script."""
    across_ranks: ClassVar[str] = ""
    """What it expects of all ranks together, where no rank can check it alone."""
    stops_at_op: ClassVar[bool] = False
    """Whether its scripts look at what an op does, not at what it leaves behind."""
    ignores_values: ClassVar[bool] = False
    """Whether its scripts average no gradients by hand."""
    takes_parameters: ClassVar[bool] = False
    """Whether its scripts look at ``params``."""

    looks: ClassVar[tuple[str, ...]] = ()
    """What an op may have changed for it to be recorded (:attr:`fuzzshard.parts.op.Op.looks`)."""

    def record(self, seen: Observer, index: int, look: str) -> None:
        """Records what there is after the op at ``index``, which may have changed ``look``."""
        raise NotImplementedError

    # Of findings:

    def internal(self, detail: str) -> bool:
        """Whether nobody sees it but an instrument."""
        return False

    def instrument(self, detail: str) -> str:
        """What its findings rest on."""
        return ""

    def signature(self, engine: str, detail: str) -> str:
        """A stable name for a kind of finding."""
        told_apart = detail and (self.tells_apart or detail in (MISSING, UNEXPECTED))
        return f"divergence/{engine}/{self.name}{f'/{detail}' if told_apart else ''}"

    # Ranks against each other:

    def observed(self, case: Case, rank: int, report: RankReport, engine: str) -> tuple[str, str]:
        """Which ranks are compared, by a name that they share, and what one of them has."""
        raise NotImplementedError

    # Words:

    def headline(self, finding: Finding, *, hangs: bool) -> str:
        """What goes wrong, for a title; ``hangs`` says how a lost collective showed."""
        return " ".join(finding.observed.split())

    def sentence(self, who: str, observed: str) -> str:
        """What goes wrong, where more is to be said than the headline."""
        return ""

    def consequence(self, finding: Finding) -> str:
        """What users have of it, where they may not know."""
        return ""

    def reason(self, finding: Finding, truth: str) -> str:
        """The rule that is broken, and where it comes from; ``truth`` describes the reference."""
        return ""

    def story(self, aim: Aim, finding: Finding, observed: str, expected: str) -> str:
        """What the script of an aim with its own assertion shows."""
        return f"{aim.engine}: observed {observed}, expected {expected}."

    # Scripts:

    def aim(self, case: Case, finding: Finding, aim: Aim) -> Aim | None:
        """What a script looks at; ``aim`` is at the engine with this oracle's own assertion."""
        return aim

    def seeded(self, finding: Finding, aim: Aim) -> Aim:
        """The aim where values are those of another seed."""
        return aim

    def before(self, scope: Scope) -> list[str]:
        """Statements before the model is wrapped."""
        return []

    def before_run(self, scope: Scope) -> list[str]:
        """Statements between wrapping and the first op."""
        return []

    def around(self, aim: Aim, lines: list[str]) -> list[str]:
        """The statements of the op that is looked at, and what they must do."""
        return lines

    def within(self, aim: Aim, lines: list[str]) -> list[str]:
        """The whole run, from building the model on."""
        return lines

    def after(self, script: Alone) -> list[str]:
        """The assertion after the run."""
        return []


class LostRanks(Oracle):
    """Ranks do not come to the end of the schedule."""

    @override
    def reason(self, finding: Finding, truth: str) -> str:
        return (
            f"{truth}, runs the same schedule to its end, and no documented refusal is in its way."
        )


class Demanded(Oracle):
    """An error or a warning that is documented, or that is none."""

    @override
    def reason(self, finding: Finding, truth: str) -> str:
        return f"the documentation demands {' '.join(finding.expected.split()).rstrip('.')}."


class Predicted(Oracle):
    """What ``fully_shard`` does within, by a model of what it documents."""

    of_values = False
    needs_finding = True
    stops_at_op = True

    @override
    def internal(self, detail: str) -> bool:
        return True

    @override
    def reason(self, finding: Finding, truth: str) -> str:
        return (
            "collectives and hooks of each op follow from the documented policies of wrapped "
            "modules."
        )

    @override
    def story(self, aim: Aim, finding: Finding, observed: str, expected: str) -> str:
        where = f" ({aim.name})" if aim.name else ""
        return (
            f"{aim.engine} in the last op here{where}: observed {observed}, expected {expected}."
        )

    @override
    def aim(self, case: Case, finding: Finding, aim: Aim) -> Aim:
        return aim.at(finding)


class AcrossRanks(Oracle):
    """Ranks are compared with each other."""

    of_values = False

    @override
    def reason(self, finding: Finding, truth: str) -> str:
        return "ranks are compared with each other, so no reference is needed."


class TensorOracle(Oracle):
    """Compares a tensor of an engine with the reference's."""

    gradient: ClassVar[Literal["", "input", "reduced", "local", "waiting"]] = ""
    """Which gradient it is: of an input; of a parameter, and reduced over the mesh, with this
    rank's unreduced part in it, or waiting for its reduction.
    """
    of_forward: ClassVar[bool] = False
    """Whether a forward computes it."""
    is_loss: ClassVar[bool] = False
    """Whether cases that observe losses only have it."""
    is_weight: ClassVar[bool] = False
    """Whether it is what replicas have copies of, and steps train."""
    is_state: ClassVar[bool] = False
    """Whether it is what a load brings back: states of the optimizer are there or not."""
    of_buffers: ClassVar[bool] = False
    holds_buffers: ClassVar[bool] = False
    in_relations: ClassVar[bool] = False
    """Whether a relation is about it."""
    dtype: ClassVar[Literal["same", "observed", "wider"]] = "same"
    """Which dtype is due: the reference's, any, or one that is not narrower."""
    gathered: ClassVar[bool] = True
    """Whether FSDP1 has more than its flat parameters of it."""
    in_flat: ClassVar[bool] = False
    """Whether FSDP1 has a range of a flat tensor in place of it."""
    handle: ClassVar[Literal["", "parameter", "name"]] = ""
    """How a script names one such tensor: by a variable that has the parameter, or by an
    expression.
    """
    noun: ClassVar[str] = "gradient"
    """What is missing where it is missing."""
    what: ClassVar[str] = ""
    """What it is, in a title."""
    thing: ClassVar[str] = ""
    """What it is of, in a sentence, with ``{name}``."""

    @override
    def headline(self, finding: Finding, *, hangs: bool) -> str:
        """What is wrong with a tensor."""
        what = self.what or self.name
        if finding.detail == MISSING:
            return f"{what} is None where plain training has one"
        if finding.detail == UNEXPECTED:
            return f"{what} is there where plain training has none"
        if finding.type_due is not None:
            return f"{what} has the wrong shape or dtype"
        return f"{what} is silently wrong"

    def said(self, finding: Finding) -> str:
        """The tensor of a finding, as the subject of a sentence."""
        if self.thing:
            return self.thing.format(name=finding.name)
        return finding.name[:1].upper() + finding.name[1:]

    @override
    def aim(self, case: Case, finding: Finding, aim: Aim) -> Aim | None:
        """What any tensor is looked at by: a comparison with the reference."""
        return None

    def one(self, watch: Watch, index: int) -> str:
        """The expression for the one tensor that is looked at after the op at ``index``."""
        return dict(self.pairs(watch, index))[watch.aim.name]

    def returned(self, watch: Watch) -> list[str]:
        """Statements of its own that return it, where it is all that a script looks at."""
        return []

    def pairs(self, watch: Watch, index: int) -> list[tuple[str, str]]:
        """Names and expressions of tensors that stand in variables of their own."""
        return []

    def entries(self, watch: Watch, index: int) -> str:
        """A dict comprehension over what has a name in the model; empty for what :meth:`pairs`
        names.
        """
        return ""

    def whole(self, watch: Watch, index: int) -> str:
        """The arguments by which ``whole`` gathers it from the shards of FSDP1, after the model.

        Raises :class:`UsageError` where nothing does.
        """
        raise UsageError(f"FSDP1 has no way to gather {self.name} for a script", "replay the case")


class ParameterGradient(TensorOracle):
    """What ``.grad`` of the trained parameters has."""

    looks = ("gradients",)
    in_flat = True
    handle = "parameter"

    @override
    def record(self, seen: Observer, index: int, look: str) -> None:
        for fqn, gradient in seen.engine.gradients().get(self.gradient, {}).items():
            seen.keep(self, index, fqn, gradient, seen.engine.flat_range(fqn))

    @override
    def one(self, watch: Watch, index: int) -> str:
        return f"{watch.parameter or watch.scope.at(watch.aim.name)}.grad"

    @override
    def entries(self, watch: Watch, index: int) -> str:
        return watch.entries(index, "p.grad", oracle=self.name)

"""The reports of ``fuzzshard check`` as one HTML file: both runs side by side, as a tree of
modules that opens where they part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fuzzshard import __version__
from fuzzshard.report.html.page import TEMPLATES
from fuzzshard.subject.report import FirstOperator, How, TrainingReport

WORDS: dict[How, str] = {
    "outputs": "equal inputs, another output",
    "inputs": "other inputs",
    "missing": "in the plain model alone",
    "extra": "in the parallelised model alone",
    "none": "",
}


@dataclasses.dataclass
class Branch:
    """A module with the operators that it calls itself; ``opens`` if the first one that differs is
    in it.
    """

    name: str
    operators: list[FirstOperator] = dataclasses.field(default_factory=list)
    children: dict[str, Branch] = dataclasses.field(default_factory=dict)
    opens: bool = False

    @property
    def below(self) -> Iterator[FirstOperator]:
        """Yield the operators of the module and of all modules below it."""
        yield from self.operators
        for child in self.children.values():
            yield from child.below

    @property
    def num_differing(self) -> int:
        """How many of these differ."""
        return sum(operator.how != "none" for operator in self.below)


def checks_page(trainings: Sequence[TrainingReport]) -> str:
    """Return the page of several trainings."""
    num_found = sum(training.is_finding for training in trainings)
    return TEMPLATES.get_template("checks.html.j2").render(
        version=__version__,
        headline=f"{num_found} of {len(trainings)} trainings with a finding",
        trainings=[(training, tree(training)) for training in trainings],
        words=WORDS,
    )


def tree(training: TrainingReport) -> Branch | None:
    """Return the modules of the step in which the runs part; None if there is none."""
    if (first := training.operator) is None:
        return None
    first = replace(first, rank=0)
    root = Branch("the model")
    for operator in training.side_by_side:
        branches = [root]
        for part in operator.module.split(".") if operator.module else ():
            branches.append(branches[-1].children.setdefault(part, Branch(part)))
        branches[-1].operators.append(operator)
        if operator == first:
            for branch in branches:
                branch.opens = True
    return root

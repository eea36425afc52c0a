"""When post-backwards run: :mod:`fuzzshard.oracles.hooks` says what is due."""

from __future__ import annotations

from typing import NamedTuple, Self

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import op, oracle

_RECORD = """
# The modules of every group whose post-backward ran before the end of the whole backward.
# No public function shows that: two private methods of torch are replaced by ones that note it.
hooks = []
post_backward = FSDPParamGroup.post_backward
end = FSDPState._root_post_backward_final_callback
ending = False


def recorded(group, *args):
    if not ending:
        hooks.append(group.modules)
    return post_backward(group, *args)


def recorded_end(state):
    global ending
    ending = True
    end(state)
    ending = False


FSDPParamGroup.post_backward = recorded
FSDPState._root_post_backward_final_callback = recorded_end
"""


class InBackward(NamedTuple):
    """So many post-backwards, or of so many units, within a backward."""

    number: int
    of_units: bool = False

    def __str__(self) -> str:
        return f"{self.number} {'units ' * self.of_units}in backward"

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the number that has this text in a finding."""
        return cls(int(text.split()[0]), " units " in text)


class Hooks(oracle.Invariant):
    """The post-backwards of wrap groups that run within a backward.

    A group whose inputs get gradients must reshard and reduce once it has computed these, and not
    at the end of the whole backward.

    It cannot see how long a post-backward takes, or whether it overlaps with computation.
    """

    name = "hooks"
    place = 180
    rests_on = "post-backwards"
    title = "post-backward hooks do not run within the backward"

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        if not scope.engine.applies_groups:
            raise UsageError("no script can be written for the hooks of FSDP1", "replay the case")
        return _RECORD.strip().splitlines()

    @override
    def around(self, scope: oracle.Scope, lines: list[str]) -> list[str]:
        assertion = scope.assertion
        wanted = InBackward.read(assertion.expected).number
        module = op.expression(assertion.name.split(", ")[0].replace("the root", ""))
        text = f"rank {{rank}}: {{observed}} post-backwards of {assertion.name}"
        return [
            "hooks.clear()",
            *lines,
            f"observed = sum({module} in modules for modules in hooks)",
            f'assert observed >= {wanted}, f"{text}"',
        ]

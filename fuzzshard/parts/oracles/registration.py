"""How parameters are registered: :mod:`fuzzshard.oracles.registration` says what is due."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle

_CLASSES = ("DTensor", "Tensor", "Parameter")

_FROZEN = ", frozen"
"""What the words for a parameter that needs no gradient end with."""


def _class(text: str) -> str:
    """``"DTensor[2, 2] float32 S(0) on mesh [2]"`` -> ``"DTensor"``."""
    return text.partition("[")[0]


class Registered(oracle.Oracle):
    """Class, placements, mesh, shape, dtype and ``requires_grad`` of every parameter.

    What is due after each op follows from the docstrings of ``fully_shard``, ``reshard()`` and
    ``set_reshard_after_backward()``.

    It cannot see wrong values, and judges nothing where the documentation leaves the state open.
    """

    name = rests_on = "registration"
    place = 150
    looks = ("registered",)
    of_values = False
    harm = oracle.Severity.LAYOUT
    needs_finding = True
    basis = (
        "which class of parameter, placement and mesh is registered after each op follows from "
        "the docstrings of `fully_shard`, `reshard` and `set_reshard_after_backward`."
    )

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        """Record where the engine registers others in training."""
        for fqn in seen.engine.inferred.parameters if seen.engine.reregisters else ():
            seen.trace.register(seen.key(self, index, fqn), seen.engine.parameter(fqn))

    @override
    def headline(self, finding: oracle.Finding, *, ends: str) -> str:
        observed, expected = _class(finding.observed), _class(finding.expected)
        if observed != expected:
            return f"registered parameter is a {observed}, not a {expected}"
        is_frozen = finding.observed.endswith(_FROZEN)
        if is_frozen == finding.expected.endswith(_FROZEN):
            return f"registered {observed} has another layout"
        state = "frozen" if is_frozen else "trainable"
        return f"registered parameter is {state} and should not be"

    @override
    def consequence(self, finding: oracle.Finding) -> str:
        if (_class(finding.observed), _class(finding.expected)) != ("Tensor", "DTensor"):
            return ""
        return (
            " What stays unsharded takes memory, and a forward that finds it so does not see a "
            "step."
        )

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        """Return the class alone where that is wrong."""
        wanted, assertion = _class(finding.expected), assertion.at(finding)
        return assertion if _class(finding.observed) == wanted else assertion.but(expected=wanted)

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        name, expected = scope.assertion.name, scope.assertion.expected
        if expected in _CLASSES:
            text = f"rank {{rank}}: {name}: expected a {expected}, observed a"
            negated = "" if expected == "DTensor" else "not "
            return [
                f"observed = {scope.at(name)}",
                f'text = f"{text} {{type(observed).__name__}}"',
                f"assert {negated}isinstance(observed, DTensor), text",
            ]
        text = f"rank {{rank}}: {name}: expected {{expected}}, observed {{observed}}"
        return [
            f"expected = {expected!r}",
            f'observed = describe(model.get_parameter("{name}"))',
            f'assert observed == expected, f"{text}"',
        ]

"""The gradients of sharded parameters that wait for their reduction."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle


class UnreducedGradient(oracle.TensorOracle):
    """The gradients that ``fully_shard`` holds under private names until they are reduced.

    What has been reduced must be None there.

    It cannot see anything with a torch in which its instrument reads wrong.
    """

    name = "unreduced_gradient"
    place = 90
    looks = ("unreduced",)
    gradient = "waiting"
    harm = oracle.Severity.INTERNAL
    needs_finding = True
    rests_on = "unreduced gradients"
    thing = "The gradient of {name} that is not reduced yet"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.unreduced_gradients().items()

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion | None:
        if finding.detail in (oracle.MISSING, oracle.UNEXPECTED):
            return assertion.at(finding).but(expected=finding.detail)
        raise UsageError("no script adds up what waits for its reduction", "replay the case")

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        assertion = scope.assertion
        who = f"rank {{rank}}: {assertion.name}"
        if assertion.expected == oracle.MISSING:
            text = f'"{who}: an unreduced gradient should be kept, and is not"'
            right = f"any(grad is not None for grad in grads), f{text}"
        else:
            text = f'"{who}: an unreduced gradient is kept: {{grads}}"'
            right = f"all(grad is None for grad in grads), f{text}"
        return [
            f"held = {scope.part(assertion.name)}",
            'computed = getattr(getattr(held, "_unsharded_param", None), "grad", None)',
            "grads = [held.unsharded_accumulated_grad, computed]",
            f"assert {right}",
        ]

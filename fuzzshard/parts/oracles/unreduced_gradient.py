"""The gradients of sharded parameters that wait for their reduction."""

from __future__ import annotations

from typing_extensions import override

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
    handle = "expression"
    harm = oracle.Severity.INTERNAL
    needs_finding = ignores_values = True
    rests_on = "unreduced gradients"
    shown = "{thing} under {engine}: observed {observed}, expected {expected}."
    thing = "The gradient of {name} that is not reduced yet"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return seen.engine.unreduced_gradients().items()

    @override
    def aim(
        self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim
    ) -> oracle.Aim | None:
        held = aim.at(finding)
        if finding.detail in (oracle.MISSING, oracle.UNEXPECTED):
            return held.but(expected=finding.detail)
        return held if finding.type_due else None

    @override
    def returned(self, watch: oracle.Watch) -> list[str]:
        """What the reference has added up without averaging it, and what the engine holds in its
        place.
        """
        name = watch.aim.name
        local = f'local["{name}"]' if watch.sums else f"{watch.scope.at(name)}.grad"
        returned = [local, watch.scope.unreduced()]
        if not watch.aim.seeded:
            returned = [f'{{"{name}": {value}}}' for value in returned]
        line = f"return {returned[0]} if model is reference else {returned[1]}"
        if len(line) < oracle.LONGEST_STATEMENT:
            return [line]
        return ["if model is reference:", f"    return {returned[0]}", f"return {returned[1]}"]

    @override
    def after(self, script: oracle.Alone) -> list[str]:
        aim, scope = script.aim, script.program.scope
        if due := oracle.TensorType.read(aim.expected):
            return [
                f"grad = {scope.unreduced()}",
                f"expected, observed = {due.expression}, (list(grad.shape), grad.dtype)",
                oracle.SAME_TYPE,
            ]
        who = f"rank {{rank}}: {aim.name}"
        if aim.expected == oracle.MISSING:
            text = f'"{who}: an unreduced gradient should be kept, and is not"'
            right = f"any(grad is not None for grad in grads), f{text}"
        else:
            text = f'"{who}: an unreduced gradient is kept: {{grads}}"'
            right = f"all(grad is None for grad in grads), f{text}"
        return [
            f"held = {scope.part(aim.name)}",
            'computed = getattr(getattr(held, "_unsharded_param", None), "grad", None)',
            "grads = [held.unsharded_accumulated_grad, computed]",
            f"assert {right}",
        ]

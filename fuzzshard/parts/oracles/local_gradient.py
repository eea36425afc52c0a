"""The gradients of parameters with this rank's part in them, which is not reduced yet."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class LocalGradient(oracle.ParameterGradient):
    """The gradient that a rank accumulates in ``.grad`` under ``no_sync()``.

    What a rank has not reduced yet may have a wider dtype than its backward gave it: where FSDP1
    does not shard, it is added to the flat gradient that was reduced before.

    It cannot see gradients that ``fully_shard`` keeps under private names until they are reduced;
    ``unreduced_gradient`` does.
    """

    name = "local_gradient"
    place = 80
    gradient = "local"
    dtype = "wider"
    what = "gradient that is accumulated without synchronisation"
    thing = "The unsynchronised gradient of {name}"

    @override
    def entries(self, watch: oracle.Watch, index: int) -> str:
        if not watch.sums:
            return super().entries(watch, index)
        local = "local[n] if p.grad is None else p.grad + local[n]"
        value = f"({local}) if n in local else p.grad"
        return watch.entries(index, value, self.over, oracle=self.name)

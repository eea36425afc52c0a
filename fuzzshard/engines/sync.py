"""Explicit gradient synchronisation: the reference's only one, and that of parameters no group
manages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Set

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.analysis.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.reference.manner import PLAIN, Manner


@dataclasses.dataclass(frozen=True)
class GradientDtypes:
    """How the gradients of low-precision copies reach the parameters that are trained.

    ``leaves`` are the copies that a backward fills. ``reduce`` are the dtypes in which gradients
    are reduced; where there is none it is the ``grad_dtype`` of the trained parameter if
    ``follow_parameters``, and else the gradient's own. ``accumulate`` says whether unsynchronised
    ones add up in these too.
    """

    leaves: Mapping[str, torch.nn.Parameter] = dataclasses.field(default_factory=dict)
    reduce: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict)
    follow_parameters: bool = False
    accumulate: bool = True


FULL_PRECISION = GradientDtypes()
"""Gradients arrive at the parameters themselves and stay what they are."""


class ExplicitSync:
    """Averages gradients over the mesh after a backward, accumulating in the order a sharded
    engine does.

    Between two synchronised backwards gradients add up locally; a synchronised backward averages
    the local sum and adds it to what ``.grad`` held. Parameters without a gradient are skipped:
    every rank runs the same graph, so they are the same ones everywhere.
    """

    def __init__(
        self,
        mesh: RankMesh,
        owners: dict[str, int | None],
        dtypes: GradientDtypes = FULL_PRECISION,
        manner: Manner = PLAIN,
    ) -> None:
        self.mesh, self.owners, self.dtypes, self.manner = mesh, owners, dtypes, manner
        self.local: dict[str, torch.Tensor] = {}
        """What has not been averaged over the whole mesh yet."""
        self.unreduced: dict[str, torch.Tensor] = {}
        """What has not even been added up over the shards of one replica."""
        self.filling: set[int] = set()
        """The groups that reduce zeros, if they are told so, for parameters without a gradient."""
        self._reduced: dict[str, torch.Tensor | None] = {}
        self._hooks: dict[str, dict[int, Callable[[torch.Tensor], None]]] = {}
        """What users registered to run after accumulation: once gradients are averaged, not
        before.
        """

    def before_backward(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Sets the reduced gradients aside so that the backward leaves only its own, and the hooks
        that are for all that has accumulated: beside those of a backward that was aborted.
        """
        self._reduced = {fqn: parameters[fqn].grad for fqn in self.owners}
        for fqn in self.owners:
            parameters[fqn].grad = None
            if hooks := parameters[fqn]._post_accumulate_grad_hooks:
                self._hooks.setdefault(fqn, {}).update(hooks)
                hooks.clear()

    def after_backward(
        self, parameters: dict[str, torch.nn.Parameter], now: ScheduleState, passed: Set[int]
    ) -> None:
        """Accumulates, and reduces the gradients of the groups that synchronise ``now``.

        The backward ends the iteration of all groups of the FSDP roots
        that it ``passed``, whether it brings them a gradient or not. What no group manages is
        averaged by hand, all of it.
        """
        news = {fqn: g for fqn in self.owners if (g := self._take(fqn, parameters)) is not None}
        for fqn in self.owners:
            lacks = fqn not in news and self._reduced[fqn] is None
            if lacks and (now.index, fqn) in self.manner.filled and parameters[fqn].requires_grad:
                news[fqn] = torch.zeros_like(self.dtypes.leaves.get(fqn, parameters[fqn]))
        waiting = {fqn: self.local[fqn] for fqn in news.keys() & self.local.keys()}
        for fqn, new in news.items():
            if self.manner.averages_again and (before := self._reduced[fqn]) is not None:
                self.local.setdefault(fqn, before)
            for held in (self.local, self.unreduced):
                total = held[fqn] + new if fqn in held else new
                held[fqn] = (
                    self._to_reduce_dtype(fqn, total, parameters)
                    if self.dtypes.accumulate
                    else total
                )
        roots: dict[int | None, int | None] = {UNMANAGED: UNMANAGED}
        roots |= enumerate(now.roots)
        ending = {UNMANAGED, *passed, *(roots[self.owners[fqn]] for fqn in news)}
        filling = {i for i in self.filling if now.wrap[i].does("fills")}
        due: dict[str, torch.Tensor] = {}
        for fqn, owner in self.owners.items():
            parameter = parameters[fqn]
            parameter.grad = self._reduced[fqn]
            if owner in filling and roots[owner] in ending and now.flags.reduce[owner]:
                self._fill(fqn, parameters)
            if roots[owner] in ending and now.flags.reduce[owner]:
                self.unreduced.pop(fqn, None)
            if fqn in self.local and roots[owner] in ending and now.flags.synced(owner):
                due[fqn] = self._to_reduce_dtype(fqn, self.local.pop(fqn), parameters)
        dtypes = self._held_dtypes(due, parameters)
        apart = self.manner.apart
        first = {f: waiting[f] for f in due if f in waiting and (now.index, f) in apart}
        due |= {fqn: self._to_reduce_dtype(fqn, news[fqn], parameters) for fqn in first}
        for part in (first, due):
            for fqn, averaged in self.averages(part, now.flags).items():
                parameter, average = parameters[fqn], averaged.to(dtypes[fqn])
                kept = None if self.manner.averages_again else parameter.grad
                parameter.grad = average if kept is None else kept + average
        self._run_hooks(parameters, due)

    def _held_dtypes(
        self, due: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.nn.Parameter]
    ) -> dict[str, torch.dtype]:
        """In what gradients that are reduced are held: in the ``grad_dtype`` of the parameter.
        Where that is None they stay as ``fully_shard`` reduces them, all of a group in one dtype.
        """
        together: dict[int | None, torch.dtype] = {}
        for fqn, gradient in due.items():
            owner = self.owners[fqn]
            if owner is not UNMANAGED:
                so_far = together.get(owner, gradient.dtype)
                together[owner] = torch.promote_types(so_far, gradient.dtype)
        return {
            fqn: parameters[fqn].grad_dtype or together.get(self.owners[fqn], gradient.dtype)
            for fqn, gradient in due.items()
        }

    def _run_hooks(self, parameters: dict[str, torch.nn.Parameter], due: Container[str]) -> None:
        """Runs the hooks of users that :meth:`before_backward` has set aside, where gradients were
        averaged: "after all gradients for a tensor have been accumulated"
        (``Tensor.register_post_accumulate_grad_hook``).
        """
        for fqn, hooks in self._hooks.items():
            parameters[fqn]._post_accumulate_grad_hooks.update(hooks)
            for hook in hooks.values() if fqn in due else ():
                hook(parameters[fqn])
        self._hooks = {}

    def forget(self) -> None:
        """Drops what waits to be reduced."""
        self.local.clear()
        self.unreduced.clear()

    def _fill(self, fqn: str, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Makes a gradient of zeros where there is none.

        ``set_reduce_scatter_unused_params`` is "to include zero gradients for parameters that did
        not receive a gradient in backward" (its docstring in
        torch/distributed/fsdp/_fully_shard/_fully_shard.py).
        """
        if fqn not in self.local and parameters[fqn].requires_grad:
            zeros = torch.zeros_like(parameters[fqn])
            self.local[fqn] = self._to_reduce_dtype(fqn, zeros, parameters)

    def _take(self, fqn: str, parameters: dict[str, torch.nn.Parameter]) -> torch.Tensor | None:
        """Return what the backward has added, from where it arrived."""
        arrived = self.dtypes.leaves.get(fqn, parameters[fqn])
        gradient, arrived.grad = arrived.grad, None
        if isinstance(gradient, DTensor) and isinstance(arrived, DTensor):
            return gradient.redistribute(placements=arrived.placements)
        return gradient

    def _to_reduce_dtype(
        self, fqn: str, gradient: torch.Tensor, parameters: Mapping[str, torch.nn.Parameter]
    ) -> torch.Tensor:
        follows = self.dtypes.follow_parameters
        own = (parameters[fqn].grad_dtype if follows else None) or gradient.dtype
        return gradient.to(self.dtypes.reduce.get(fqn, own))

    def with_local(self, fqn: str, reduced: torch.Tensor | None) -> torch.Tensor | None:
        """Return ``reduced`` with what has accumulated on this rank since."""
        local = self.local.get(fqn)
        if local is None or reduced is None or self.manner.averages_again:
            return reduced if local is None else local
        return reduced + local

    def averages(
        self, local: Mapping[str, torch.Tensor], flags: SyncFlags, ranks: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the sums of ``local`` gradients over the mesh, each divided as its group says, or
        by ``ranks``.

        Gradients of one dtype share an all-reduce: gloo sends as many messages for ten elements
        as for ten thousand.
        """
        divisors = {fqn: ranks or flags.divisors[self.owners[fqn]] for fqn in local}
        in_half = self.manner.in_half
        halves = {
            fqn: gradient.to(getattr(torch, in_half[fqn])).div_(divisors[fqn])
            for fqn, gradient in local.items()
            if fqn in in_half
        }
        if halves:
            if self.mesh.size > 1:
                self._add_up([*halves.values()])
            others = {fqn: local[fqn] for fqn in local if fqn not in halves}
            rounded = {fqn: half.to(local[fqn].dtype) for fqn, half in halves.items()}
            return rounded | (self.averages(others, flags, ranks) if others else {})
        if self.mesh.size == 1:
            return {
                fqn: gradient if divisors[fqn] == 1 else gradient / divisors[fqn]
                for fqn, gradient in local.items()
            }
        totals: dict[str, torch.Tensor] = {}
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for fqn, gradient in local.items():
            total = totals[fqn] = gradient.clone(memory_format=torch.contiguous_format)
            if total.dtype == torch.float16:
                before = _divided_before(divisors[fqn])
                total.div_(before)
                divisors[fqn] /= before
            here = total.to_local() if isinstance(total, DTensor) else total
            by_dtype.setdefault(total.dtype, []).append(here)
        for tensors in by_dtype.values():
            self._add_up(tensors)
        return {fqn: total / divisors[fqn] for fqn, total in totals.items()}

    def _add_up(self, tensors: list[torch.Tensor]) -> None:
        """All-reduce tensors of one dtype in place."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, group=self.mesh.group)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, flat.split_with_sizes(sizes), strict=True):
            tensor.copy_(total.view_as(tensor))


def _divided_before(size: float) -> int:
    """About the root of ``size``, a power of two: float16 gradients are divided by it before they
    add up.

    Their sums overflow early (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
    _get_gradient_divide_factors); FSDP1 does the same.
    """
    factor = 1
    while size % factor == 0 and size / factor > factor:
        factor *= 2
    return factor

"""``FullyShardedDataParallel`` (FSDP1)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import torch
from torch import nn
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel
from typing_extensions import override

from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, join
from fuzzshard.engines.base import plain_name
from fuzzshard.engines.fsdp1 import contract
from fuzzshard.engines.no_sync import NOTHING_DIFFERENTIATED, NoSyncEngine
from fuzzshard.engines.refusals import Refusal
from fuzzshard.instruments import FLAT_PARAMETERS, works
from fuzzshard.parts.exclusion import Exclusion

if TYPE_CHECKING:
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    from fuzzshard.training.trace import Trace


@contextlib.contextmanager
def debug_level(*, detail: bool) -> Iterator[None]:
    """Set ``torch.distributed``'s debug level within it to ``DETAIL`` or ``OFF``."""
    before = get_debug_level()
    set_debug_level(DebugLevel.DETAIL if detail else DebugLevel.OFF)
    try:
        yield
    finally:
        set_debug_level(before)


class Slice(NamedTuple):
    """What this rank holds of a parameter.

    Elements [start, stop) of it, flattened, are those of ``handle``'s local flat parameter from
    ``offset`` on; ``number`` is the parameter's place in the handle.
    """

    handle: FlatParamHandle
    number: int
    start: int
    stop: int
    offset: int

    @property
    def original(self) -> nn.Parameter:
        """The original parameter, under ``use_orig_params``; sharded it is flat."""
        originals = self.handle.flat_param._params
        assert originals is not None
        return originals[self.number]

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this part of a tensor that is laid out as the local flat parameter is."""
        return flat[self.offset : self.offset + self.stop - self.start]


class FSDP1(NoSyncEngine):
    """Every wrapped module is a unit with one flat parameter, and so is the root.

    A rank holds a range of each flat parameter, so of each parameter it has a range of its
    elements, or nothing; ``NO_SHARD`` holds everything.
    """

    name: ClassVar[str] = "fsdp1"
    registers: ClassVar[bool] = False
    state_dict_aliases: ClassVar[bool] = False
    refusals: ClassVar[tuple[Refusal, ...]] = contract.REFUSALS
    # two modules of six of the smallest model with two units do, on torch 2.13 (measured without
    # fuzzshard); why is not known
    outlives_run = True

    @override
    @classmethod
    def lacking(cls, case: Case) -> str | None:
        return None if works(FLAT_PARAMETERS) else "flat parameters whose ranges can be told"

    @override
    @classmethod
    def not_comparable(cls, case: Case, reference: Trace) -> Exclusion | None:
        if reference.skipped:  # what a forward gathers is kept until a backward
            return NOTHING_DIFFERENTIATED
        return contract.filled_gradients(case, reference.without_gradient())

    @override
    @classmethod
    def surroundings(cls, case: Case) -> contextlib.AbstractContextManager[None]:
        return debug_level(detail=case.fsdp1.debug == "detail")

    @override
    @classmethod
    @contextlib.contextmanager
    def whole_parameters(cls, module: nn.Module, *, gradients: bool) -> Iterator[None]:
        summon = functools.partial(
            FullyShardedDataParallel.summon_full_params, module, writeback=False
        )
        units = FullyShardedDataParallel.fsdp_modules(module)
        flat = [p for p in module.parameters() if isinstance(p, FlatParameter)]
        if not units:
            yield
            return
        if not (gradients and flat):
            with summon(with_grads=gradients):
                yield
            return
        # torch summons no gradients of flat parameters, but values: gradients take their place
        held = [(p, p.detach().clone(), p.grad) for p in flat]
        try:
            for one, value, gradient in held:
                one.data.copy_(torch.zeros_like(value) if gradient is None else gradient)
            with summon():
                for parameter in module.parameters():
                    parameter.grad = parameter.detach().clone()
                yield
        finally:
            for one, value, gradient in held:
                one.data.copy_(value)
                one.grad = gradient

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        names = {
            module: f"{path}.{below}".strip(".")
            for path, part in self.inferred.modules.items()
            if not isinstance(part, Block)  # which may have others under second names
            for below, module in model.get_submodule(path).named_modules()
        }
        self.fsdp = cast(FullyShardedDataParallel, super().parallelize(model))
        units = FullyShardedDataParallel.fsdp_modules(self.fsdp)
        found = {
            plain_name(join(names[info.module], info.param_name)): piece
            for unit in units
            if unit._handle is not None
            for info, piece in zip(
                unit._handle.flat_param._param_infos, _slices(unit._handle), strict=True
            )
        }
        assert found.keys() == self.inferred.parameters.keys()
        self.slices = {fqn: found[fqn] for fqn in self.inferred.parameters}  # not unit by unit
        return self.fsdp

    @override
    def take_parameters(self) -> None:
        """Take what the optimizer holds: original parameters, or flat ones by the name of the
        first in them.
        """
        self.trained = {}
        self._frozen = frozenset(ScheduleState(self.case).frozen)
        for fqn, piece in self.slices.items():
            if self.case.fsdp1.use_orig_params:
                self.trained[fqn] = piece.original
            elif piece.number == 0:
                self.trained[fqn] = piece.handle.flat_param

    @override
    def before_op(self, index: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Also freeze what a module does not register: a unit that had nothing to train is left
        with views of its original parameters, which ``requires_grad_`` does not find.
        """
        super().before_op(index, optimizers)
        if self.case.fsdp1.use_orig_params:
            frozen = frozenset(self.scope.now.frozen)
            for fqn in frozen ^ self._frozen:
                self.trained[fqn].requires_grad_(fqn not in frozen)
            self._frozen = frozen

    @override
    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return self.fsdp.no_sync()

    @override
    def flat_range(self, fqn: str) -> tuple[int, int] | None:
        piece = self.slices[fqn]
        return piece.start, piece.stop

    @override
    def observed(self) -> dict[str, torch.Tensor]:
        """Return this rank's range of every parameter that it has something of, from where it is
        offloaded to.
        """
        found = {}
        for fqn, piece in self.slices.items():
            if piece.start < piece.stop:
                original = self.case.fsdp1.use_orig_params
                held = (
                    piece.original.detach().flatten()
                    if original
                    else piece.of(piece.handle.flat_param)
                )
                found[fqn] = held.to(self.mesh.device)
        return found

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Return gradients, which under ``no_sync`` are unsharded sums of this rank alone, apart
        from reduced ones.

        They include what reached frozen parameters of a flat parameter that is not all frozen; the
        reduction drops it (torch/distributed/fsdp/_flat_param.py, ``_use_sharded_grad_views``).
        """
        found = {
            fqn: self._gradient(piece)
            for fqn, piece in self.slices.items()
            if piece.start < piece.stop
        }
        held = {
            fqn: None if grad is None else grad.to(self.mesh.device) for fqn, grad in found.items()
        }
        return {"local" if self.unsynced else "reduced": held}

    def _gradient(self, piece: Slice) -> torch.Tensor | None:
        flat = piece.handle.flat_param
        if self.unsynced:
            dropped = self.case.fsdp1.use_orig_params and not piece.original.requires_grad
            return None if dropped else _accumulated(piece)
        if self.case.fsdp1.use_orig_params:
            gradient = piece.original.grad
            return None if gradient is None else gradient.flatten()
        return None if flat.grad is None else _part_of(flat.grad, piece)


def _accumulated(piece: Slice) -> torch.Tensor | None:
    """Return what ``no_sync`` has accumulated, on top of the shard that was reduced before, which
    is kept apart.
    """
    flat = piece.handle.flat_param
    reduced: torch.Tensor | None = getattr(flat, "_saved_grad_shard", None)
    if reduced is None or flat.grad is None:
        gradient = flat.grad if reduced is None else reduced
        return None if gradient is None else _part_of(gradient, piece)
    return piece.of(reduced) + _part_of(flat.grad, piece)


def _part_of(gradient: torch.Tensor, piece: Slice) -> torch.Tensor:
    """This rank's part of a parameter in the gradient of its flat parameter, sharded or not."""
    handle = piece.handle
    if handle.is_sharded(gradient):
        return piece.of(gradient)
    unpadded = gradient[: handle.flat_param._unpadded_unsharded_size.numel()]
    whole: list[torch.Tensor] = list(handle._get_unflat_views(unpadded))
    return whole[piece.number].flatten()[piece.start : piece.stop]


def _slices(handle: FlatParamHandle) -> Iterator[Slice]:
    """This rank's part of every parameter of a unit, in its order."""
    infos: tuple[Any, ...] = handle.flat_param._shard_param_infos
    for number, info in enumerate(infos):
        if info.in_shard:
            stop = info.intra_param_end_idx + 1
            yield Slice(handle, number, info.intra_param_start_idx, stop, info.offset_in_shard)
        else:
            yield Slice(handle, number, 0, 0, 0)


ENGINE = FSDP1

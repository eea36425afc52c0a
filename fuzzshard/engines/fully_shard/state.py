"""What ``fully_shard`` holds besides what is registered: the one place that knows its private
names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from fuzzshard.instruments import GROUP_STATES, UNSHARDED_MEMORY, reading, works
from fuzzshard.model.build import MODULE_PREFIX


def param_groups(model: nn.Module) -> list[Any]:
    """Return the ``FSDPParamGroup`` s below ``model``."""
    found: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            found |= {id(group): group for group in state._fsdp_param_groups}
    return list(found.values())


def forget_classes() -> None:
    """Drops the wrapper classes that torch keeps for ever of the classes of generated models.

    ``fully_shard`` gives each module a class made of its own one, and caches these by that class
    (``cls_to_fsdp_cls``; ``replicate`` since torch 2.10 likewise). Every case has classes of its
    own.
    """
    for module, cache in _CLASS_CACHES:
        classes: dict[type, type] = getattr(sys.modules.get(module), cache, {})
        for each in [each for each in classes if each.__module__.startswith(MODULE_PREFIX)]:
            del classes[each]


_CLASS_CACHES = (
    ("torch.distributed.fsdp._fully_shard._fully_shard", "cls_to_fsdp_cls"),
    ("torch.distributed._composable.replicate_with_fsdp", "cls_to_replicate_cls"),
)


def unreduced_gradient(fsdp_param: Any) -> torch.Tensor | None:
    """Return what backwards have left on this rank to be reduced later.

    ``unsharded_accumulated_grad`` where it adds up in another dtype than it is computed in, else
    ``.grad`` of the unsharded parameter. Both at once is a mistake, which their sum shows.
    """
    unsharded = getattr(fsdp_param, "_unsharded_param", None)
    computed: torch.Tensor | None = None if unsharded is None else unsharded.grad
    accumulated: torch.Tensor | None = fsdp_param.unsharded_accumulated_grad
    if accumulated is None or computed is None or accumulated is computed:
        return computed if accumulated is None else accumulated
    return accumulated + computed


def unsharded_elements(fsdp_param: Any) -> int:
    """Return how many elements of memory the unsharded parameter takes now; its storage is freed
    when sharded.
    """
    tensors = [*fsdp_param.all_gather_outputs, *fsdp_param._unsharded_inner_tensors]
    return sum(tensor.untyped_storage().size() // tensor.itemsize for tensor in tensors)


class GroupState(NamedTuple):
    """What one ``FSDPParamGroup`` holds between two ops.

    ``unsharded`` has the elements of memory that its unsharded parameters take, by FQN, and
    ``freed`` those of them that have elements, were unsharded before, and have no memory.
    ``gathers`` says that an all-gather was issued and is not used yet, ``keeps_buffer`` that the
    output of one is kept although it was copied out; ``reduces`` that inputs or events of
    reductions are kept, ``partial`` that a sum over shards waits for its all-reduce, ``idle`` that
    no hook left the group within a forward or backward. What an instrument that is off would say
    is as it is after a run that leaves nothing behind.
    """

    unsharded: dict[str, int]
    freed: tuple[str, ...] = ()
    keeps_buffer: bool = False
    gathers: bool = False
    reduces: bool = False
    partial: bool = False
    idle: bool = True


def group_state(group: Any, names: Mapping[int, str]) -> GroupState:
    """Return the state of ``group``; ``names`` are FQNs by the id of the ``FSDPParam``."""
    state = GroupState({names[id(part)]: 0 for part in group.fsdp_params})
    if works(UNSHARDED_MEMORY):
        with reading(UNSHARDED_MEMORY):
            unsharded = {names[id(part)]: unsharded_elements(part) for part in group.fsdp_params}
            holding = [
                names[id(part)]
                for part in group.fsdp_params
                if part._orig_size.numel() and hasattr(part, "_unsharded_param")
            ]
            state = state._replace(
                unsharded=unsharded,
                freed=tuple(fqn for fqn in holding if not unsharded[fqn]),
                keeps_buffer=_has_run(group) and group.comm_ctx.all_gather_state is not None,
            )
    if works(GROUP_STATES):
        with reading(GROUP_STATES):
            state = state._replace(
                gathers=group._all_gather_result is not None,
                reduces=any(kept is not None for kept in _reductions(group)),
                partial=group._partial_reduce_output is not None,
                idle=group._training_state.name == "IDLE",
            )
    return state


def _has_run(group: Any) -> bool:
    """Return whether the root of ``group`` has run: its first forward makes what the groups share.

    An explicit unshard before that makes one thing alone, a device handle.
    """
    return len(vars(group.comm_ctx)) > 1


def _reductions(group: Any) -> Iterator[Any]:
    """Whatever is kept of reductions that were issued."""
    yield from getattr(group.comm_ctx, "reduce_scatter_states", ())
    yield group._post_reduce_event
    yield group._all_reduce_state

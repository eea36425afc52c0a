"""Ways to change how a model runs its operators, each with a parameter that is never reduced."""

import functools

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard


def sharded(model, mesh):
    first = next(model.parameters())
    fully_shard(model, mesh=mesh, ignored_params={first})


def _checkpoint(model, implementation):
    wrap = functools.partial(checkpoint_wrapper, checkpoint_impl=implementation)
    inner = [m for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    chosen = {id(module) for module in inner[1:]}  # not the first: inputs need a gradient
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=wrap, check_fn=lambda module: id(module) in chosen
    )


def checkpointed(model, mesh):
    _checkpoint(model, CheckpointImpl.NO_REENTRANT)
    sharded(model, mesh)


def checkpointed_by_reentering(model, mesh):
    _checkpoint(model, CheckpointImpl.REENTRANT)
    sharded(model, mesh)


def compiled(model, mesh):
    model.compile(backend="eager")
    sharded(model, mesh)

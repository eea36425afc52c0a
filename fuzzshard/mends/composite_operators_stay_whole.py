"""Under ``inference_mode`` operators that are made of others come to DTensor as a whole.

Autograd takes them apart, also under ``no_grad``, and DTensor knows what they are made of. Under
``inference_mode`` nothing does. ``_propagate_op_sharding_dispatch_slow_path`` in
``torch/distributed/tensor/_dispatch.py`` means to ("we manually decompose them, here"), but only
where no placements are found, and since torch 2.13 they are found for each operator that could be
taken apart (``DecompShardingStrategy``). So the operator itself runs, on local tensors:

- ``expand_as``, which ``nn.functional.normalize`` calls, expands to the size of the other's shard;
- ``linear`` may shard another dim than under ``no_grad``. Dynamo traces as if under ``no_grad``
  (``maybe_disable_inference_mode``), so what it says of a result is wrong at run time: under the
  backend "eager" a redistribution is traced away that is needed;
- ``cross_entropy_loss`` is none of the operators that ``loss_parallel`` replaces, and refuses
  labels that are plain tensors.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fuzzshard.mending import Patch, Promise, Public, Releases

if TYPE_CHECKING:
    from torch._ops import OpOverload

TITLE = "DTensor: wrong values or errors of normalize, linear, cross_entropy under inference_mode"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "InferenceMode is analogous to :class:`~no_grad` and should be used when you are certain your "
    "operations will not interact with autograd",
    "torch.inference_mode",
)
SETUP = (
    "A sharded model that normalises activations, is compiled, or has its loss under "
    "``loss_parallel()`` is evaluated under ``inference_mode()``."
)
WORKAROUND = "Use ``torch.no_grad()``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
x = torch.arange(15.0).view(3, 5)
with torch.inference_mode():
    sharded = distribute_tensor(x, mesh, [Shard(1)])
    actual = torch.nn.functional.normalize(sharded, dim=-1).full_tensor()
torch.testing.assert_close(actual, torch.nn.functional.normalize(x, dim=-1))
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/torchtitan/pull/3781",
        "merged, works around placements of linear that differ under inference_mode",
        "DTensor torch.compile backend eager inference_mode wrong placements linear redistribute "
        "size mismatch fake tensor",
        "2026-11-30",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/171652",
        "closed, brought the placements",
        "DTensor inference_mode CompositeImplicitAutograd decompose DecompShardingStrategy "
        "operator not decomposed",
        "2026-11-30",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/122485",
        "near: open, the placements of expand_as",
        "DTensor expand_as inference_mode wrong local shape normalize sharded",
        "2026-11-29",
    ),
    Public(
        query="loss_parallel cross_entropy inference_mode aten.cross_entropy_loss got mixed "
        "torch.Tensor and DTensor",
        date="2026-11-29",
    ),
)


@functools.cache
def _composite_operators() -> list[OpOverload]:
    """Return the operators that are taken apart by autograd."""
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    split = (name.removeprefix("aten::").partition(".") for name in names if name[:6] == "aten::")
    return [getattr(getattr(torch.ops.aten, name), of or "default") for name, _, of in split]


def apply(patch: Patch) -> None:
    """Takes apart what has no placements of its own."""
    from torch.distributed.tensor import DTensor

    def take_apart(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return op.decompose(*args, **kwargs)

    dispatcher: Any = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    handlers = dispatcher._custom_op_handlers
    rules = (
        handlers,
        propagator.op_to_rules,
        propagator.op_strategy_funcs,
        propagator.op_single_dim_strategy_funcs,
    )
    for op in _composite_operators():
        if not any(op in known for known in rules):
            patch(handlers, op, take_apart)

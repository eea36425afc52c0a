"""SGD and Adagrad with fused, and Rprop with foreach, raise on parameters that are DTensors.

``fully_shard`` makes DTensors of parameters. They dispatch an operator by its sharding rule. The
operators of fused Adam and AdamW have one, and those of the other optimizers that document
``fused``, ``_fused_sgd_`` and ``_fused_adagrad_``, have none (``_extra_pointwise_ops`` in
torch/distributed/tensor/_ops/_pointwise_ops.py). Nor has ``_foreach_copy_``, with which Rprop keeps
its last gradients. All of them work element by element: shards that lie alike can be stepped where
they are, as those of Adam are.
"""

from __future__ import annotations

import dataclasses

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = (
    "torch.optim.SGD and Adagrad: fused=True raises on DTensors, and Rprop with foreach=True does"
)
COMPONENT = "DTensor"
WEIGHT = "limitation"
CONTRACT = Promise(
    "fused (bool, optional): whether the fused implementation is used.",
    "torch.optim.SGD",
)
SETUP = (
    "A model is trained with fully_shard and torch.optim.SGD(model.parameters(), fused=True), or "
    "Adagrad, or with Rprop, whose default on CUDA is foreach."
)
WORKAROUND = "Pass ``fused=False`` or ``foreach=False``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model = nn.Linear(4, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="Operator aten._fused_sgd_.default _fused_adagrad_ _foreach_copy_ does not have a "
        "sharding strategy registered DTensor",
        date="2026-11-29",
    ),
)

# ``verify --causes`` calls one of its entries UNSHOWN on 2.13, b521f84c: there it needs the mend of
# rprop_assigns_by_a_mask, too.


def apply(patch: Patch) -> None:
    """Gives them the rule of fused AdamW; Adagrad has its steps at another place."""
    import torch
    from torch.distributed.tensor import DTensor

    aten, propagator = torch.ops.aten, DTensor._op_dispatcher.sharding_propagator
    fused = aten._fused_adamw_.default
    rules = (
        (aten._fused_sgd_.default, fused, None),
        (aten._fused_sgd_.tensor_lr, fused, None),
        (aten._fused_adagrad_.default, fused, [3]),
        (aten._fused_adagrad_.tensor_lr, fused, [3]),
        (aten._foreach_copy_.default, aten._foreach_mul_.List, None),
    )
    for op, like, steps in rules:
        for table in (
            *(propagator.op_strategy_funcs, propagator.op_to_schema_info),
            getattr(propagator, "op_single_dim_strategy_funcs", {}),
            getattr(propagator, "op_to_schema_info_for_single_dim_strategy", {}),
        ):
            if like in table:
                rule = table[like]
                if hasattr(rule, "different_mesh_args"):
                    rule = dataclasses.replace(rule, different_mesh_args=steps)  # type: ignore
                patch(table, op, rule)

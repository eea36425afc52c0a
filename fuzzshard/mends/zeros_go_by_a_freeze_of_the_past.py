"""Whether an unused parameter gets a gradient of zeros goes by whether it was frozen when its
group last ran.

With ``set_reduce_scatter_unused_params`` the end of a backward reduces zeros for trainable
parameters that got no gradient. ``FSDPParamGroup._get_unsharded_grad_to_reduce``
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py) asks the unsharded parameter for its
``requires_grad``, which is a copy from the time at which the group was last unsharded; what users
freeze and thaw is the sharded one. A group that does not run in this iteration so gives what is
frozen by now a gradient of zeros, by which weight decay moves it, and what is trainable by now
none. The check a few lines above, ``_validate_unused_param_grad_dtypes``, asks the sharded
parameter.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "Zeros for unused parameters go by the requires_grad of when their group last ran"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Sets whether to include zero gradients for parameters that did not receive a gradient in "
    "backward",
    "FSDPModule.set_reduce_scatter_unused_params",
)
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/170667",
        says="near: closed, zeros for all parameters without a gradient",
        query="FSDP2 set_reduce_scatter_unused_params zero gradients frozen parameter "
        "requires_grad",
        date="2026-11-23",
    ),
    Public(
        query="fully_shard unused parameters reduce-scatter zeros frozen after unshard "
        "requires_grad stale",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._get_unsharded_grad_to_reduce",
        """
        self.reduce_scatter_unused_params and unsharded_param.requires_grad
        """,
        """
        self.reduce_scatter_unused_params and param.sharded_param.requires_grad
        """,
        Releases(since="2.15"),
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        """
        and fsdp_param.unsharded_param.requires_grad
        """,
        """
        and fsdp_param.sharded_param.requires_grad
        """,
        Releases(until="2.15"),
    ),
)

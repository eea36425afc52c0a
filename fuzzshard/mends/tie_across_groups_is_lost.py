"""A parameter that modules of two groups share is sharded once in each, and the tie is lost.

``FSDPParam._init_sharded_param`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) puts the
sharded parameter in place of the original one in the modules of its own group only. The other
group meets the original and shards a second copy: each has the gradient of its own uses, or none,
and they drift apart with the first step of an optimizer. Torch 2.12 refuses such a model in its
first forward.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A parameter tied across two groups of fully_shard is sharded twice, without a word"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "except those already assigned to a group from an earlier call on a submodule",
    "fully_shard, module",
)
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/176225",
        "refused since torch 2.12, with pytorch PR 176257; torchtitan issue 2817",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._init_sharded_param",
        "self.is_dtensor = isinstance(param, DTensor)",
        """
self.is_dtensor = isinstance(param, DTensor)
if not hasattr(param, "_fsdp_orig_uid"):
    param._fsdp_orig_uid = object()
self._orig_param_uid = param._fsdp_orig_uid
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._lazy_init",
        "self._init_shared_state()",
        """
self._init_shared_state()
seen = set()
for state in dict.fromkeys(self._state_ctx.all_states):
    for fsdp_param in state._fsdp_param_group.fsdp_params if state._fsdp_param_group else ():
        if fsdp_param._orig_param_uid in seen:
            raise ValueError(
                f"Parameter '{fsdp_param._param_fqn}' is shared with a "
                f"parameter already managed by another FSDP group. "
                f"For shared/tied parameters, use "
                f"fully_shard([module_a, module_b]) to place them in "
                f"the same FSDP group."
            )
        seen.add(fsdp_param._orig_param_uid)
        """,
    ),
)

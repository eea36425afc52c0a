"""Backward gathers what is sharded on a smaller mesh by the group of another mesh.

After forward a group with an int ``reshard_after_forward`` is sharded on a smaller mesh.
``FSDPParamGroup._all_gather_process_group``
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py) takes the process group from
``post_forward_mesh_info``, which ``FSDPModule.set_reshard_after_forward`` replaces at once. If it
is called between forward and backward with False, backward ends in an AssertionError. With True it
gathers the shards of the smaller mesh from all ranks, so that each value arrives several times.
The parameters know the mesh that they are sharded on.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard(reshard_after_forward=int): AssertionError in backward after "
    "set_reshard_after_forward(False)"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Sets if the module should reshard parameters after forward. This can be used to change the "
    "``reshard_after_forward`` FSDP arg at runtime.",
    "FSDPModule.set_reshard_after_forward",
)
SETUP = (
    "Training with ``reshard_after_forward`` set to the number of GPUs of a node, where the flag "
    "is set for an evaluation before the backward of the last batch."
)
WORKAROUND = "Call ``set_reshard_after_forward`` after backward."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP2 set_reshard_after_forward between forward and backward Expected mesh_info to "
        "be FSDPMeshInfo, got NoneType reshard_after_forward int",
        date="2026-11-26",
    ),
    Public(
        query="FSDPModule set_reshard_after_forward runtime change SHARDED_POST_FORWARD "
        "all-gather wrong process group",
        date="2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:"
        "FSDPParamGroup._all_gather_process_group",
        "cast(FSDPMeshInfo, self.post_forward_mesh_info)",
        "cast(FSDPMeshInfo, self.fsdp_params[0].post_forward_mesh_info)",
    ),
)

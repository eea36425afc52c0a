"""``FSDPModule.reshard()`` does nothing in a forward, and nothing against an all-gather that was begun.

``FSDPModule.reshard`` (torch/distributed/fsdp/_fully_shard/_fully_shard.py) calls what the hooks call after
forward: ``FSDPParamGroup.reshard`` goes by ``reshard_after_forward`` while the group is in its forward
state, in which a list group stays that ran in part, or a module whose recomputation stopped early. And a
group that still counts as sharded keeps the output of an all-gather that nobody has waited for
(``unshard(async_op=True)``, a prefetch of a module that does not run). The next forward takes it for its
own, so it computes with the parameters of before the step; where it was begun from the smaller mesh of an int
``reshard_after_forward``, its sizes are not those of the mesh that the parameters are on by then.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "reshard() is ignored in the forward state and keeps an all-gather that was begun"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Reshards the module's parameters [...] the sharded parameters to the module", "FSDPModule.reshard"
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/137348",
        says="near: merged, clears such an all-gather at the end of a backward only",
        query=(
            "fully_shard reshard() stale parameters unshard(async_op=True) prefetch pending all- "
            "gather after optimizer step"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.reshard",
        """
            fsdp_param_group.reshard()
        """,
        """
            fsdp_param_group.wait_for_unshard()
            fsdp_param_group._to_sharded()
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._to_sharded",
        """
        if not self.is_sharded:
        """,
        """
        if not self.is_sharded:
            self.wait_for_unshard()
        """,
    ),
)

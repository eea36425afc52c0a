"""``FSDPModule.reshard()`` does nothing in a forward, and nothing against an all-gather that was
begun.

``FSDPModule.reshard`` (torch/distributed/fsdp/_fully_shard/_fully_shard.py) calls what the hooks
call after forward: ``FSDPParamGroup.reshard`` goes by ``reshard_after_forward`` while the group is
in its forward state, in which a list group stays that ran in part, or a module whose recomputation
stopped early. And a group that still counts as sharded keeps the output of an all-gather that
nobody has waited for (``unshard(async_op=True)``, a prefetch of a module that does not run). The
next forward takes it for its own, so it computes with the parameters of before the step; where it
was begun from the smaller mesh of an int ``reshard_after_forward``, its sizes are not those of the
mesh that the parameters are on by then. Only the end of a backward drops such an all-gather
(``FSDPParamGroup.finalize_backward``). One that was prefetched is taken for later parameters also
where nobody calls ``reshard()``, which this change leaves as it is.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "reshard() keeps an all-gather that nobody waited for: the next forward uses old weights"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Before forward, FSDP all-gathers the sharded parameters across the data-parallel workers to "
    "get the "
    "unsharded parameters for forward computation.",
    "fully_shard",
)
SETUP = (
    "Forward prefetch is set from block to block, and part of the model runs by itself after the "
    "backward and before the step: an evaluation that exits early, or features for a metric. The "
    "block after the exit was prefetched and does not run. After the step, its next forward uses "
    "the weights from before it; after ``load_state_dict`` in place of a step, those from before "
    "the load. Calling ``reshard()`` on every module before the step does not help; with the "
    "change below it does, and it is still needed."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/137348",
        says="near: merged, clears such an all-gather at the end of a backward only",
        query=(
            "fully_shard reshard() stale parameters unshard(async_op=True) prefetch pending "
            "all-gather after optimizer step"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/110139",
        says="near: merged, for FSDP1, where a prefetch outlived an evaluation",
        query=(
            "FSDP2 prefetched module does not run all-gather result pending outdated weights "
            "evaluation early exit"
        ),
        date="2026-11-23",
    ),
    Public(
        query="FSDP2 forward uses stale weights after optimizer.step because "
        "unshard(async_op=True) all-gather not waited, reshard no-op",
        date="2026-11-24",
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

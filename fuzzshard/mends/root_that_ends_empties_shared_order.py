"""A root whose backward ends empties the order of forwards that it shares with others.

At the end of a backward ``FSDPState._end_backward_iteration``
(torch/distributed/fsdp/_fully_shard/_fsdp_state.py) calls ``finalize_backward`` on the groups of
this root and empties ``post_forward_order``. With ``share_comm_ctx`` the order is that of other
roots, too. Their groups keep their places in it: if their backward comes later, as in a pipeline,
its prefetch reads beyond the end, an IndexError, or unshards a group that ran since. They also
keep what this backward prefetched for them. If they have no backward, the optimizer updates their
parameters and their next forward computes with the values from before. Whoever empties the order
has to finalize all groups in it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "share_comm_ctx: IndexError in backward or stale parameters in forward when another root's "
    "backward ended"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "For Pipeline Parallelism (PP), each model chunk is a FSDP root. We want to share cuda "
    "streams for all-gather, reduce-scatter, and all-reduce.",
    "share_comm_ctx",
)
SETUP = (
    "Pipeline parallelism with several chunks on a rank, each of them an FSDP root, which share"
    " streams as the docstring of ``share_comm_ctx`` proposes; or one of them is not in the loss "
    "of a step."
)
WORKAROUND = "Do not share the context."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="none found",
        query="FSDP2 share_comm_ctx post_forward_order IndexError list index out of range "
        "_backward_prefetch",
        date="2026-11-23",
    ),
    Public(
        says="none found",
        query=(
            "fully_shard post_forward_order cleared backward of another root shared communication "
            "context pipeline stages prefetch wrong"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/137348",
        says="near: merged, clears what was prefetched in vain for a group of the same root",
        query=(
            "FSDP2 share_comm_ctx backward prefetch unshard parameters of another root stale "
            "weights after optimizer step"
        ),
        date="2026-11-26",
    ),
)
_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState"
_OLD = """
self._comm_ctx.post_forward_order.clear()
"""
_NEW = """
for group in self._comm_ctx.post_forward_order:
    group.finalize_backward()
self._comm_ctx.post_forward_order.clear()
"""
EDITS = (
    Edit(f"{_STATE}._end_backward_iteration", _OLD, _NEW, Releases(since="2.15")),
    Edit(f"{_STATE}._root_post_backward_final_callback", _OLD, _NEW, Releases(until="2.15")),
    Edit(f"{_STATE}._reset_iter_state", _OLD, _NEW),
)

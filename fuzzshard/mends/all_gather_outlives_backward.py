"""The output of the last all-gather outlives the backward where no post-forward of the root frees
it.

``wait_for_unshard`` keeps the output of an all-gather in ``FSDPCommContext.all_gather_state``
until the next one is copied out, and the post-forward of the root frees the last
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_state.py). A list group that
runs in part by itself, and a recomputation that stops early, gather without such an end, and the
end of the backward resets what it finds but this. The memory of one unsharded group is held
through the step, until the next forward.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: memory of an unsharded group is held through the step when a list group runs "
    "in part"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Finally, we have the last FSDP state flush the reference to avoid holding onto memory after "
    "forward.",
    "Note: Overlapping all-gather copy-in and all-gather (_fsdp_param_group.py)",
)
SETUP = (
    "The final norm and the head are one group, ``fully_shard([norm, head])``, and a forward "
    "runs only one of them. The memory of one unsharded group is not free during the optimizer "
    "step, where memory is at its highest."
)
WORKAROUND = "Wrap the modules in groups of their own."
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/196460",
        says="the fix in torch 2.15",
        query=(
            "FSDP2 all_gather_state not freed after backward memory held partial grouped forward "
            "release all-gather result"
        ),
        date="2026-11-23",
    ),
)
# ``verify --causes`` calls its entries UNNEEDED on 2.13: the mend of list_group_forward_without_end
# cures them as well, as it ends the forwards that these leave open.
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
        """
        self._state_ctx.post_backward_final_callback_queued = False
        """,
        """
        self._comm_ctx.all_gather_state = None
        self._state_ctx.post_backward_final_callback_queued = False
        """,
    ),
)

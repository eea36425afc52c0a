"""A module whose recomputation stops early stays in its forward state.

``torch.utils.checkpoint`` ends a recomputation with an exception as soon as it has all that it
saved (early stop). Where that happens within the forward of a wrapped module, its post-forward
hook is not called, for ``FSDPState.init`` (torch/distributed/fsdp/_fully_shard/_fsdp_state.py)
registers it without ``always_call``. Unless the backward comes to an output below the same FSDP
root later, nothing else ends the forward of the group: it stays unsharded in its forward state, in
which ``reshard()`` does nothing and the next forward registers no post-backward. Hooks of list
groups are registered with ``always_call`` already.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A module whose recomputation stops early stays in its forward state"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "After gradient computation, FSDP frees the unsharded parameters and reduce-scatters the "
    "unsharded "
    "gradients across data-parallel workers.",
    "fully_shard",
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="none found",
        query=(
            "FSDP2 activation checkpoint early stop recomputation post-forward hook not run "
            "parameters unsharded after backward"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.init",
        """
        self._post_forward, prepend=False
        """,
        """
        self._post_forward, prepend=False, always_call=True
        """,
    ),
)

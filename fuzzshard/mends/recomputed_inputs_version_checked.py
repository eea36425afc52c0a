"""A graph with a checkpoint saves the buffers that it changes, and so does not allow the next
forward.

To recompute a batch norm in backward the partitioner saves all that it reads
(``_extract_fwd_bwd_modules`` in ``torch/_functorch/partitioners.py``), its running statistics
among them, which the same graph changes in place. They are saved with a version check, as if
autograd had saved them, and the next forward before the backward changes them once more. A
checkpoint in eager mode reads buffers as they are when it recomputes. torch has a list of what is
saved without the check, which is where they belong.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: backward fails when a checkpointed batch norm runs twice before it"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the unsaved tensors are recomputed by re-invoking",
    "torch.utils.checkpoint.checkpoint",
)
SETUP = (
    "Two views of a batch go through one compiled and checkpointed network with batch norm "
    "before one backward, as in contrastive learning."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch issue 96136 (open), statistics that a recomputation updates twice",
        query="activation checkpoint torch.compile batch norm modified by an inplace operation "
        "recompute",
        date="2026-11-23",
    ),
    Public(
        says="none found",
        query="torch.compile aot_autograd checkpoint batch norm running_mean modified by an "
        "inplace operation compiled backward",
        date="2026-11-22",
    ),
)
EDITS = (
    Edit(
        "torch._functorch.partitioners:_extract_fwd_bwd_modules",
        """
        saved_values_no_vc_check = []
        """,
        """
        saved_values_no_vc_check = []
        for node in saved_values:
            changes = [u for u in node.users if u.target is aten.copy_.default and u.args[0] is node]
            if changes and all(u in changes or must_recompute(u) for u in node.users):
                node.meta["saved_tensor_with_no_vc_check"] = True
        """,
    ),
)

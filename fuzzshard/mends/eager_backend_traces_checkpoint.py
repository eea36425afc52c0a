"""The backend "eager" runs a checkpoint that Dynamo traced as if it traced it once more.

Dynamo replaces a checkpoint by ``tag_activation_checkpoint``, and what that runs, with tensors as
well, is made for AOTAutograd to trace (``tag_activation_checkpoint_impl`` in
``torch/_higher_order_ops/wrap.py``). It keeps no random state, for a partitioner is to take care
of it, so a recomputation draws other dropouts than the forward. It hands parameters and buffers
over as inputs of the checkpoint, which saves them, so that a batch norm's counter may not be
counted up. With no trace under way it should be the checkpoint of eager mode.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = 'A checkpoint in a graph of the backend "eager" is not that of eager mode'
COMPONENT = "compile"
CONTRACT = Promise(
    "preserve_rng_state (bool, optional): Omit stashing and restoring the RNG state during each "
    "checkpoint. "
    "[...] Default: True",
    "torch.utils.checkpoint.checkpoint",
)
TORCH = Releases(since="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/160883",
        "open, 'Fallback to eager AC when backend=eager'",
    ),
    Public("https://github.com/pytorch/pytorch/issues/160773", "closed, of the random state"),
    Public(
        "https://github.com/pytorch/pytorch/pull/102450",
        "merged; says among its concerns: 'Does not work with \"eager\" backend'",
        "activation checkpoint torch.compile batch norm num_batches_tracked modified by an "
        "inplace operation",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch._higher_order_ops.wrap:tag_activation_checkpoint_impl",
        """
        unique_graph_id = next(uid)
        """,
        """
        unique_graph_id = next(uid)
        if torch._guards.detect_fake_mode(args) is None:
            from torch.utils.checkpoint import checkpoint

            if "_checkpoint_context_fn" in gmod.meta:
                kwargs["context_fn"] = gmod.meta["_checkpoint_context_fn"]
            kwargs["use_reentrant"] = False
            return checkpoint(lambda: Interpreter(gmod).run(*args), **kwargs)
        """,
    ),
)

"""The backend "eager" runs a checkpoint that Dynamo traced as if it traced it once more.

Dynamo replaces a checkpoint by ``tag_activation_checkpoint``. Its implementation is written for
AOTAutograd to trace (``tag_activation_checkpoint_impl`` in ``torch/_higher_order_ops/wrap.py``),
but the backend "eager" runs it with real tensors. It saves no random state, which the partitioner
would take care of, so a recomputation draws other dropout masks than the forward. It passes
parameters and buffers as inputs of the checkpoint, which saves them, so that the counter of a
batch norm may not be changed. If nothing is traced, it should do what the checkpoint of eager mode
does.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    'torch.compile(backend="eager"): a recomputation draws other dropouts when a checkpoint is '
    "traced"
)
COMPONENT = "compile"
WEIGHT = "limitation"
CONTRACT = Promise(
    "preserve_rng_state (bool, optional): Omit stashing and restoring the RNG state during each "
    "checkpoint. [...] Default: True",
    "torch.utils.checkpoint.checkpoint",
)
SETUP = (
    "Somebody debugs a model with activation checkpointing under the backend ``eager``. Its "
    "gradients are those of another dropout than its loss."
)
WORKAROUND = 'Use ``backend="aot_eager"``.'
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

"""The composable checkpoint lets Dynamo compile a forward that it then recomputes uncompiled.

``torch.utils.checkpoint.checkpoint`` is a function that Dynamo traces as a whole, or, where it
cannot, runs as it is (``_disable_dynamo``). The hooks of ``checkpoint`` in
``torch/distributed/_composable/checkpoint_activation.py`` break the graph, and what runs between
them is compiled; the recomputation runs in backward, where nothing is. A compiled graph saves
other tensors than the operations, or in another order: a linear layer its transposed weight. Where
their shapes are equal nothing notices. Between the hooks nothing should be compiled either, nor
where the recomputation calls a module that is compiled itself.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "Composable checkpoint: a recomputation fails or gradients are wrong when its module is "
    "compiled"
)
COMPONENT = "compile"
WEIGHT = "limitation"
CONTRACT = Promise(
    "Under the hood, it registers activation checkpointing logic as pre- and post-forward hooks. "
    "Hence, this API can be easily applied to any model or sub-modules in the model",
    "torch.distributed._composable.checkpoint",
)
WORKAROUND = "Use ``torch.utils.checkpoint``, with which these programs pass."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/144637",
        "open; the same error, of checkpoint_wrapper around a compiled module",
        "checkpoint around torch.compile saved tensors different order recomputation "
        "CheckpointError",
        "2026-11-23",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/166926",
        "near, open: a recomputation hits another graph",
    ),
)
EDITS = (
    Edit(
        "torch.distributed._composable.checkpoint_activation:_no_hook",
        """
        with user_ctx if user_ctx else nullcontext():
        """,
        """
        with user_ctx if user_ctx else nullcontext(), torch.compiler.set_stance("force_eager"):
        """,
    ),
    Edit(
        "torch.distributed._composable.checkpoint_activation:checkpoint",
        """
        checkpoint.state(module)._ac_generator = gen
        """,
        """
        checkpoint.state(module)._ac_generator = gen
        checkpoint.state(module)._dynamo = torch._C._dynamo.eval_frame.set_eval_frame(None)
        """,
    ),
    Edit(
        "torch.distributed._composable.checkpoint_activation:checkpoint",
        """
        checkpoint.state(module)._ac_generator = None
        """,
        """
        checkpoint.state(module)._ac_generator = None
        if (callback := vars(checkpoint.state(module)).pop("_dynamo", None)) is not None:
            torch._C._dynamo.eval_frame.set_eval_frame(callback)
        """,
    ),
)

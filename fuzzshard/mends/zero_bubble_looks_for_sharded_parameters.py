"""Zero bubble schedules lose gradients of what ``fully_shard`` reshards after forward.

``stage_backward_input`` and ``stage_backward_weight`` look in the autograd graph for
``self.submod.parameters()`` (``backward_maybe_with_nosync`` in
``torch/distributed/pipelining/stage.py``). The graph was built by unsharded parameters. Where a
module has resharded since, which is the default for all but the root, it has sharded ones then,
and no graph has those: nothing is computed for them, and nothing is said. The backward unshards
only once it runs. A microbatch is lost if a forward of the same stage is the last thing that ran
before it, so gradients are partial sums, or None. Weights that a later forward has resharded are
also read from freed storage by the second part of the backward.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: zero bubble drops gradients of modules that reshard after forward"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "If True, then this reshards parameters after forward and re-all-gathers in backward.",
    "torch.distributed.fsdp.fully_shard, reshard_after_forward",
)
SETUP = (
    "Stages with fully_shard on each layer and ``ScheduleInterleavedZeroBubble`` or"
    " ``ScheduleZBVZeroBubble``, with the default reshard_after_forward or torchtitan's"
    ' ``fsdp_reshard_after_forward = "always"``.'
)
WORKAROUND = "Pass reshard_after_forward=False to every fully_shard, or use another schedule."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/134052",
        "near: made zero bubble call the hooks of fully_shard, tested without resharding",
        "pipelining zero bubble FSDP reshard_after_forward=True wrong gradients"
        " stage_backward_input stage_backward_weight",
        "2026-11-27",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/164756",
        "near: all-gathers of a stage come at other times than its UNSHARD actions",
        "split backward FSDP2 reshard_after_forward parameters sharded AccumulateGrad not found",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining.stage:_PipelineStageBase.backward_maybe_with_nosync",
        "self.submod.set_requires_gradient_sync(False)",
        """
        self.submod.set_requires_gradient_sync(False)
        if backward_type != "full":
            for module in self.submod.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
        """,
    ),
)

"""Zero bubble schedules lose the gradients of a stage whose input requires none.

They compute gradients of inputs first, which finds the parameters on the way from outputs to
inputs (``stage_backward_input``), and those of weights later from what was found
(``stage_backward_weight``). Where no input requires a gradient nothing is found, and all
parameters of the stage are left without a gradient. ``backward_one_chunk`` and
``backward_weight_one_chunk`` in ``torch/distributed/pipelining/stage.py`` know this of the first
stage alone ("if inputs does not require gradient, then the parameter group will not be fully
captured"), and run its whole backward with the weights. Any stage needs that if all stages before
it are frozen or have no parameters; torch 2.11 let every input of a stage require a gradient.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: zero bubble leaves a stage without gradients if those before it are frozen"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Will perform one forward and one backward on inputs for the microbatches in steady state and"
    " supports multiple stages per rank. Uses the backward for weights to fill in the pipeline"
    " bubble.",
    "torch.distributed.pipelining.schedules.ScheduleInterleavedZeroBubble",
)
SETUP = (
    "The first layers of a model are frozen, and it is fine-tuned with"
    " ``ScheduleInterleavedZeroBubble`` or ``ScheduleZBVZeroBubble``."
)
WORKAROUND = "Use another schedule, or let a parameter of the first stage require a gradient."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/140019",
        "near: removed a check of whether inputs require gradients",
        "pipelining zero bubble frozen first stage input does not require grad weight gradient"
        " None stage_backward_input stage_index 0",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining.stage:_PipelineStageBase.backward_one_chunk",
        "if not self.is_first:",
        """
        if not self.is_first and not any(value.requires_grad for value in input_values):
            param_groups = []  # nothing is left for later
            grads_input, _ = self.backward_maybe_with_nosync(
                "full", bwd_kwargs, last_backward=last_backward
            )
        elif not self.is_first:
        """,
    ),
)

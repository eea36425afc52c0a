"""``schedule.eval()`` asks a stage for the gradients of its inputs, where the stage before is on
the same rank.

``eval`` runs all actions of a schedule, and those of backward do nothing by themselves
(``backward_one_chunk`` returns where ``has_backward`` is off). Between neighbouring stages of one
rank the runtime then hands the gradient over by hand (``[Note: V-schedule special case]`` in
``torch/distributed/pipelining/schedules.py``), and ``get_local_bwd_output`` asserts that there is
a backward. So it is in the middle of every schedule whose stages lie as a V over the ranks.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = 'pipelining: eval() of a V-shaped schedule raises "can\'t steal_bwd_input"'
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Run one forward-only iteration of the pipeline schedule.",
    "torch.distributed.pipelining.schedules._PipelineSchedule.eval",
)
SETUP = (
    "``ScheduleZBVZeroBubble`` and a validation by ``schedule.eval()``, or any schedule of several"
    " stages where all ranks of the pipeline are one."
)
WORKAROUND = "Validate by another schedule over the same stages, whose stages lie in a loop."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/157795",
        "brought eval(), which was tested with stages in a loop",
        "pipelining schedule.eval() V-shaped ScheduleZBVZeroBubble \"can't steal_bwd_input if this"
        " stage doesn't have backward\" get_local_bwd_output",
        "2026-11-27",
    ),
    Public(
        "https://github.com/pytorch/torchtitan/pull/1490",
        "near: compares the losses of validations under four schedules, none of them a V",
        "pipelining eval() forward only ScheduleZBVZeroBubble DualPipeV validation AssertionError",
        "2026-11-27",
    ),
)
_RUNTIME = "torch.distributed.pipelining.schedules:_PipelineScheduleRuntime._step_microbatches"
_HANDS_OVER = """\
    last_backward={},
)
# SEND/RECV op are avoided for special case with 2 adjacent stages on same rank
# see [Note: V-schedule special case]
if {}is_prev_stage_on_this_rank:
"""
EDITS = tuple(
    Edit(
        _RUNTIME,
        _HANDS_OVER.format(last, ""),
        _HANDS_OVER.format(last, "self._has_backward and "),
    )
    for last in ("last_backward", "False")
)

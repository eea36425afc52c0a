"""Zero bubble schedules raise where the output of a stage is a view.

``stage_backward_input`` (torch/distributed/pipelining/_backward.py) ends by ``detach_()`` of the
outputs of the stage, to free their graph. A view cannot be detached in place: "Can't detach views
in-place. Use detach() instead". The outputs of a transposition, of ``view`` or of an ``nn.LSTM``
with ``batch_first=True`` are views. Without the call nothing but memory changes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "zero bubble schedules: the backward raises when the output of a stage is a view"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Will perform one forward and one backward on inputs for the microbatches in steady state and"
    " supports multiple stages per rank. Uses the backward for weights to fill in the pipeline"
    " bubble.",
    "torch.distributed.pipelining.schedules.ScheduleInterleavedZeroBubble",
)
SETUP = (
    "A model whose stages end with a view (``x.transpose(1, 2)``, ``x.flatten(2)``, an "
    "``nn.LSTM(batch_first=True)``) is trained by a zero bubble schedule. The first backward "
    "raises."
)
WORKAROUND = "Return a copy from the last module of the stage: ``x.transpose(1, 2).contiguous()``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/142229",
        "the same for every schedule, open; since mended for those without zero bubble",
        "pipelining zero bubble stage_backward_input detach_ Can't detach views in-place stage "
        "output is a view",
        "2026-11-27",
    ),
)
_BACKWARD = "torch.distributed.pipelining._backward:stage_backward_input"
EDITS = (
    Edit(
        _BACKWARD,
        """
        t.detach_()
        """,
        """
        if not t._is_view():
            t.detach_()
        """,
        Releases(until="2.15"),
    ),
    Edit(
        _BACKWARD,
        """
        if isinstance(stage_output, torch.Tensor):
            stage_output.detach_()
        """,
        """
        if isinstance(stage_output, torch.Tensor) and not stage_output._is_view():
            stage_output.detach_()
        """,
        Releases(since="2.15"),
    ),
)

"""Zero bubble schedules free what a module between two calls of another one needs later.

``stage_backward_weight`` (``torch/distributed/pipelining/_backward.py``) goes once for each group
of parameters from the nodes where these meet the path to the input, and keeps no graph. A module
that is called twice meets that path at two nodes. What lies between them is gone through on the way
from one to the other, and its saved tensors are freed, which the group of its own parameters needs
afterwards: "Trying to backward through the graph a second time".
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: zero bubble raises where a stage calls a module twice and another between"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "Will perform one forward and one backward on inputs for the microbatches in steady state and"
    " supports multiple stages per rank. Uses the backward for weights to fill in the pipeline"
    " bubble.",
    "torch.distributed.pipelining.schedules.ScheduleInterleavedZeroBubble",
)
SETUP = (
    "``ScheduleInterleavedZeroBubble`` or ``ScheduleZBVZeroBubble``, and a stage with a layer that"
    " is called twice, and another one between both calls, as where layers share weights."
)
WORKAROUND = "Use a schedule that does not split backwards."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/180952",
        "near: one parameter at two nodes of one group, which 2.13 has fixed",
        "pipelining stage_backward_weight retain_graph param groups reused module shared"
        " 'backward through the graph a second time'",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining._backward:stage_backward_weight",
        "retain_graph=retain_graph,",
        "retain_graph=retain_graph or param_group is not param_groups[-1],",
    ),
)

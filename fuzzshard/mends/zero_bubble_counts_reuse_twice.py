"""Zero bubble schedules count what a stage uses twice in a row twice.

``stage_backward_weight`` (``torch/distributed/pipelining/_backward.py``) starts a backward at each
node at which a path to a parameter leaves the path to the input, with the gradient that
``stage_backward_input`` saved there. Where one parameter is used twice, one of these nodes lies
below the other: it gets its saved gradient, and the same gradient again from the node above. Torch
2.13 gives each node the saved gradient and nothing else.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: zero bubble counts gradients twice when a stage reuses a parameter"
COMPONENT = "other"
CONTRACT = Promise(
    "If full_backward is True (the default), the full backward pass including weight and input"
    " gradients will be run",
    "torch/distributed/pipelining/stage.py, backward_one_chunk, whose two halves give the same",
)
SETUP = (
    "A stage calls a layer or uses a parameter twice, one call after the other, and the schedule "
    "is ``ScheduleInterleavedZeroBubble`` or ``ScheduleZBVZeroBubble``."
)
WORKAROUND = "Use torch 2.13, or another schedule."
TORCH = Releases(since="2.11", until="2.13")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/180952", "the same"),
    Public("https://github.com/pytorch/pytorch/pull/181365", "closed: the same fix"),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining._backward:stage_backward_weight",
        'del param_group["intermediates"]',
        """
handles = [
    node.register_prehook(lambda _, saved=saved: saved)
    for node, saved in zip(param_group["intermediates"], param_group["grads"])
]
del param_group["intermediates"]
        """,
    ),
    Edit(
        "torch.distributed.pipelining._backward:stage_backward_weight",
        'del param_group["grads"]',
        """
del param_group["grads"]
for handle in handles:
    handle.remove()
        """,
    ),
)

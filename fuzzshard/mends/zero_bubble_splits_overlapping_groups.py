"""Zero bubble schedules go twice through the graph of parameters that share one of several nodes.

``get_param_groups`` (``torch/distributed/pipelining/_backward.py``) puts parameters together whose
paths meet the path to the input at the same nodes. Where a parameter meets it at two, of which one
is known to have a group and the other is not, and the new one comes first out of a set, it gets
the group of this parameter alone, and is not told when that group joins the other one. So
``stage_backward_weight`` computes the parameter in both, and the second finds a graph without
saved tensors. Two modules with one bias and a weight each do that, in about every second backward:
the order of nodes in a set is that of their addresses. On CUDA without cuDNN an LSTM of several
time steps does, as its fused cell takes the biases apart from the product with hidden weights.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: zero bubble goes through the graph a second time where a bias is shared"
COMPONENT = "other"
WEIGHT = "exotic"
CONTRACT = Promise(
    "The returned list of parameter groups is a list of dictionaries, where each dictionary"
    " contains [...] a set of parameters [...] a set of intermediates",
    "torch.distributed.pipelining._backward.get_param_groups, whose sets are to be disjoint",
)
SETUP = (
    "``ScheduleInterleavedZeroBubble`` or ``ScheduleZBVZeroBubble``, and a stage with a bias that"
    " two layers share, or an ``nn.LSTM`` on CUDA with cuDNN off."
)
WORKAROUND = "Use a schedule that does not split backwards."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/180952",
        "near: one parameter at two nodes of one group, which 2.13 has fixed",
        "pipelining get_param_groups stage_backward_weight param groups not merged shared bias"
        " tied parameter zero bubble 'backward through the graph a second time'",
        "2026-11-27",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/132691",
        "brought the groups",
        "pipelining zero bubble LSTM 'Trying to backward through the graph a second time'"
        " stage_backward_weight",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining._backward:get_param_groups",
        "param_group = existing",
        """
        param_group = existing
        param_groups.update(dict.fromkeys(existing["intermediates"], existing))
        """,
    ),
)

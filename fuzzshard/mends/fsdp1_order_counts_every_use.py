"""FSDP1 warns of another order of units where a unit runs twice in every iteration.

The check of the order, on with ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, records the first use of each
unit in the first iteration (``record_pre_forward`` in
``torch/distributed/fsdp/_exec_order_utils.py``) and compares every use in later ones
(``_check_order``). A module that is called twice, or two forwards before one backward, draws the
warning, though each iteration is as the first. The maintainers say that it may be ignored; it says
that "Collectives are unchecked and may give incorrect results or hang", which is not so.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: a warning of another order is wrong when a unit runs twice in each iteration"
COMPONENT = "FSDP1"
WEIGHT = "limitation"
CONTRACT = Promise(
    "On subsequent iterations, this checks that each rank is locally consistent with its own "
    "forward order from the first iteration, issuing a warning if not",
    "torch/distributed/fsdp/_exec_order_utils.py, _check_order",
)
SETUP = (
    "``TORCH_DISTRIBUTED_DEBUG=DETAIL`` is on, and a module is called twice, or two forwards "
    "come before one backward."
)
WORKAROUND = "Ignore the warning where every iteration runs the same modules."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/84175",
        "closed: the warning may be ignored if the model trains",
        'FSDP "Forward order differs from that of the first iteration" warning module called '
        "twice",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._exec_order_utils:_ExecOrderData._check_order",
        """
        msg_prefix = None  # non-`None` means we should warn
        """,
        """
        # Only the first usage of a handle is recorded
        if handle in self.handles_pre_forward_order[: self.current_order_index]:
            return
        msg_prefix = None  # non-`None` means we should warn
        """,
    ),
)

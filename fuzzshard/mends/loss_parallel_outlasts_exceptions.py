"""``loss_parallel()`` stays on after an exception within it.

The generator of the context manager ends with ``_disable_custom_loss_ops()`` after its ``yield``
(``torch/distributed/tensor/parallel/loss.py``), and has no ``finally``. An exception in a forward
or a backward within it, which a training loop catches to skip a batch, leaves the operators of all
DTensors replaced. The next ``log_softmax`` of classes that are not sharded, outside of the
context, raises ``ValueError: loss_parallel() requires exactly one mesh dim to shard tensor
dimension 1``, and backwards of others pass on their gradients as they are.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "loss_parallel: the context manager stays on after an exception within it"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "A context manager that enables loss parallelism, where efficient parallelized loss computation "
    "can be performed when the input is sharded on the class dimension.",
    "loss_parallel",
)
SETUP = "A training loop catches the exception of a batch, and evaluates another model then."
WORKAROUND = "Enter the context once more, and leave it: ``with loss_parallel(): pass``."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="loss_parallel context manager exception not restored try finally custom loss ops "
        "DTensor",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import contextlib
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
with contextlib.suppress(KeyError), loss_parallel():
    raise KeyError("a broken batch")
DTensor.from_local(torch.ones(2, 3), mesh).log_softmax(1)
dist.destroy_process_group()
"""
# ``verify --causes`` calls its entry UNNEEDED: the mend of loss_parallel_replaces_every_log_softmax
# cures it as well, as it leaves classes that are not sharded alone, also after the exception.
EDITS = (
    Edit(
        "torch.distributed.tensor.parallel.loss:loss_parallel",
        """
        yield

        _disable_custom_loss_ops()
        """,
        """
        try:
            yield
        finally:
            _disable_custom_loss_ops()
        """,
    ),
)

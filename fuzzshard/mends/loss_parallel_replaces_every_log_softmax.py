"""``loss_parallel()`` replaces the backward of every ``log_softmax`` of DTensors by nothing.

The context manager replaces six operators of all DTensors (``customized_loss_ops`` in
``torch/distributed/tensor/parallel/loss.py``), of whatever module they are and however they lie.
The backward of ``log_softmax`` returns the gradient that it is given, as that of ``nll_loss`` has
done its work. A backward of a model goes on within the context, so a ``log_softmax`` in the model,
whose result goes to no cross entropy, passes that gradient on: gradients of all that comes before
it are wrong, and nothing says so. A cross entropy within the model, of classes that are not
sharded, raises ``ValueError: loss_parallel() requires exactly one mesh dim to shard tensor
dimension 1``; so does a recomputation of either. A recomputation of a ``log_softmax`` of sharded
classes is like one of the loss: what tells them apart is where the gradient comes from.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "loss_parallel: gradients are wrong when the model has a log_softmax of DTensors"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "The corresponding ``backward()`` call, if any, also needs to happen under this context manager.",
    "loss_parallel",
)
SETUP = (
    "A model with tensor parallelism has a log_softmax over DTensors, of attention or of a mixture, "
    "and a loss of sharded classes."
)
WORKAROUND = "Convert what goes into the log_softmax to a plain tensor before."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/190746",
        "open: 'loss_parallel() gives identity gradients to any log_softmax not consumed by "
        "cross_entropy', of sharded classes",
        "loss_parallel log_softmax backward wrong gradient DTensor inside model replicate",
        "2026-11-29",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/191606",
        "open: the backward of log_softmax computes; where classes are not sharded it raises",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
labels = torch.tensor([0, 2])
x = torch.tensor([[1.0, 2.0, 4.0], [0.0, 3.0, 1.0]], requires_grad=True)
nn.functional.cross_entropy(x.log_softmax(1) * x, labels).backward()
expected, x.grad = x.grad, None
d = DTensor.from_local(x, mesh, [Replicate()])
logits = (d.log_softmax(1) * d).redistribute(placements=[Shard(1)])
with loss_parallel():
    nn.functional.cross_entropy(logits, labels).backward()
torch.testing.assert_close(x.grad, expected)
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor.parallel.loss:_enable_custom_loss_ops",
        "DTensor._op_dispatcher._custom_op_handlers.update(customized_loss_ops)",
        """
        handlers = DTensor._op_dispatcher._custom_op_handlers

        def where_classes_are_sharded(op, handler):
            def handle(op_call, args, kwargs):
                backward = "backward" in str(op)
                x = args[1] if backward else args[0]
                dim = args[2 if backward else 1] if "softmax" in str(op) else min(1, x.ndim - 1)
                sharded = any(placement.is_shard(dim % x.ndim) for placement in x.placements)
                if "log_softmax_backward" in str(op):
                    sharded = sharded and hasattr(args[0], "of_cross_entropy")
                if sharded:
                    result = handler(op_call, args, kwargs)
                    if "nll_loss" in str(op) and backward:
                        result.of_cross_entropy = True
                    return result
                del handlers[op]
                try:
                    return op(*args, **kwargs)
                finally:
                    handlers[op] = handle

            return handle

        for op, handler in customized_loss_ops.items():
            handlers[op] = where_classes_are_sharded(op, handler)
        """,
    ),
)

"""``loss_parallel()`` looks up the weight of a target that is ignored.

The backward gathers the weights of classes by ``target``, where ``ignore_index`` is no class
(``_nll_loss_and_log_softmax_backward`` in ``torch/distributed/tensor/parallel/loss.py``). The
forward puts class 0 in its place, ``safe_target``, before it does.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "loss_parallel: cross_entropy with weight= and ignored targets raises in its backward"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "CrossEntropyLoss as usual, with the following assumptions on the input parameters",
    "loss_parallel",
)
SETUP = "Classes of unequal weight, and padding that the loss ignores (-100 is the default)."
WORKAROUND = "Give ignored targets class 0 and multiply the losses of these tokens by zero."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="loss_parallel cross_entropy weight ignore_index backward index -100 is out of "
        "bounds gather",
        date="2026-11-30",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
logits = distribute_tensor(torch.ones(2, 4, requires_grad=True), mesh, [Shard(1)])
with loss_parallel():
    loss = nn.functional.cross_entropy(logits, torch.tensor([1, -100]), torch.ones(4))
    loss.backward()
torch.testing.assert_close(loss.full_tensor(), torch.tensor(4.0).log())
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor.parallel.loss:_nll_loss_and_log_softmax_backward",
        "w_target = torch.gather(w, channel_dim, target)",
        """
        known = torch.where(target != ignore_index, target, 0)
        w_target = torch.gather(w, channel_dim, known)
        """,
    ),
)

"""A second backward reuses the buffer of an all-gather that is still running.

A backward prefetches by the order of the forward, so it may gather a group that it does not go
through. ``FSDPParamGroup.finalize_backward``
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py) drops such an all-gather once the
current stream has waited for it. Its buffer goes back to the memory of the copy-in stream, and
nothing orders that stream after the all-gather until the next forward of the root does. A second
backward through the same graph (``retain_graph=True``) has no forward before it: its first
all-gather copies its shard into the same memory, and the one that is still running overwrites it.
So parameters are wrong in that backward, depending on time. The all-gather streams have to wait as
well.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: wrong gradients, now and then, in a second backward when one prefetched in vain"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Before forward, FSDP all-gathers the sharded parameters across the data-parallel workers to "
    "get the unsharded parameters for forward computation.",
    "fully_shard; what it gathers again before backward has to be the same",
)
SETUP = (
    "Two losses of one forward have a backward each, and a part of the model is in neither: an "
    "auxiliary head, a frozen branch."
)
WORKAROUND = "Add up the losses, or call ``torch.accelerator.synchronize()`` between backwards."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(1024, 2048, bias=False)
        self.body = nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return self.head(x), self.body(x)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2,))
model = Model()
for module in (model.head, model.body, model):
    fully_shard(module, mesh=mesh)
x = torch.ones(1, 1024, device="cuda", requires_grad=True)
for _ in range(3):  # the first one loads kernels
    x.grad = None
    _, y = model(x)  # this loss does not use the head
    torch.cuda._sleep(10**8)  # the device is busy, as it is in training
    y.sum().backward(retain_graph=True)
    once = x.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * once), f"{(x.grad - 2 * once).abs().max()=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/196460",
        "near: open, about buffers of forwards, where the current stream alone waits as well",
        "fully_shard unused module prefetched in backward all_gather_output freed before "
        "all-gather stream caching allocator reuse nondeterministic gradients",
        "2026-11-26",
    ),
    Public(
        query="FSDP2 fully_shard retain_graph second backward all-gather copy-in stream race "
        "mistargeted prefetch finalize_backward wrong gradients",
        date="2026-11-26",
    ),
)
_FINALIZE = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.finalize_backward"
)
EDITS = (
    Edit(
        _FINALIZE,
        "self.device_handle.current_stream().wait_event(event)",
        """
        self.device_handle.current_stream().wait_event(event)
        self.comm_ctx.wait_all_gather_streams_on_event(event)
        """,
        Releases(since="2.15"),
    ),
    Edit(
        _FINALIZE,
        "torch.accelerator.current_stream().wait_event(event)",
        """
        torch.accelerator.current_stream().wait_event(event)
        self._wait_all_gather_streams_on_event(event)
        """,
        Releases(until="2.15"),
    ),
)

"""A prefetch for another FSDP root reads parameters that the optimizer is still writing.

``FSDPState._pre_forward`` (torch/distributed/fsdp/_fully_shard/_fsdp_state.py) gathers the modules
of ``set_modules_to_forward_prefetch`` on the streams of their own root. Those wait for the current
stream, and so for the optimizer, in ``_root_pre_forward`` of that root only. Where it has not
begun its forward yet, its copy-in stream copies the shards while the optimizer step is queued, and
forward computes with parameters from before the step. This depends on time. The streams of another
root have to wait here, as they do there.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "Explicit prefetching: stale parameters in forward when the target belongs to another FSDP "
    "root"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Sets the FSDP modules for which this FSDP module should explicitly prefetch all-gathers in "
    "forward.",
    "FSDPModule.set_modules_to_forward_prefetch",
)
SETUP = (
    "Two models are wrapped, each with a root of its own (text encoder and denoiser, generator "
    "and critic), and the last block of the first prefetches the first block of the second."
)
WORKAROUND = "Share streams between the roots: ``share_comm_ctx([first, second])``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2,))
encoder, denoiser = nn.Linear(1024, 1024), nn.Linear(1024, 1024)
for root in (encoder, denoiser):
    fully_shard(root, mesh=mesh, reshard_after_forward=True)
optimizer = torch.optim.SGD([*encoder.parameters(), *denoiser.parameters()], lr=0.1)
x = torch.ones(1, 1024, device="cuda")


def train():
    denoiser(encoder(x)).sum().backward()
    torch.cuda._sleep(10**8)  # the device is busy, as it is in training
    optimizer.step()
    optimizer.zero_grad()


train()  # loads kernels, initialises roots
encoder.set_modules_to_forward_prefetch([denoiser])
torch.cuda.synchronize()
train()
early = denoiser(encoder(x))
torch.cuda.synchronize()
late = denoiser(encoder(x))
assert torch.equal(early, late), f"{(early - late).abs().max()=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP2 set_modules_to_forward_prefetch across root modules stale parameters "
        "optimizer step stream synchronization all_gather_copy_in_stream wait_stream",
        date="2026-11-26",
    ),
    Public(
        query="fully_shard explicit forward prefetch separate root old weights race CUDA multiple "
        "roots",
        date="2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._pre_forward",
        """
        for fsdp_state in self._states_to_forward_prefetch:
        """,
        """
        for fsdp_state in self._states_to_forward_prefetch:
            other = fsdp_state._comm_ctx
            if other is not self._comm_ctx and hasattr(other, "all_gather_stream"):
                for stream in (other.all_gather_copy_in_stream, other.all_gather_stream):
                    stream.wait_stream(self._device_handle.current_stream())
        """,
    ),
)

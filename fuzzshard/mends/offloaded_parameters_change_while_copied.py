"""A step on the CPU changes offloaded parameters that a forward before it has not read yet.

With ``CPUOffloadPolicy`` parameters are in pinned memory, and ``FSDPParam.all_gather_inputs``
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py) copies them to the device with
``non_blocking=True``. After a backward the host waits for the gradients, which come later than the
copies. After a forward without gradients nothing waits: an optimizer, a running average or a load
that comes next writes the memory that the device may still have to read, so the forward computes
with parameters of later, or with some of both. This depends on how busy the device is. A forward
after which no backward comes has to wait for its copies.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "CPUOffloadPolicy: an evaluation reads parameters that a step after it has changed"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Sharded parameters are copied host-to-device before all-gather.",
    "torch.distributed.fsdp.CPUOffloadPolicy",
)
SETUP = (
    "fully_shard keeps parameters and the optimizer on the host (CPUOffloadPolicy), and between a "
    "backward and its step the model is evaluated under torch.no_grad(), or parameters are loaded "
    "or averaged after an evaluation."
)
WORKAROUND = "Call ``torch.cuda.synchronize()`` before parameters change."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

mesh = init_device_mesh("cuda", (1,))
model = nn.Linear(1024, 1024, bias=False)
nn.init.zeros_(model.weight)
fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
x = torch.ones(1, 1024, device="cuda")
model(x).sum().backward()
torch.cuda._sleep(10**9)  # the device is busy, as it is in training
with torch.no_grad():
    output = model(x).sum()
optimizer.step()
assert output.item() == 0.0, f"{output.item()} before the first step, not 0"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/180666",
        "near: merged, gradients that a hook reads before their copy has arrived",
        "FSDP2 CPUOffloadPolicy pin_memory non_blocking copy race optimizer step parameters",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._post_forward",
        """
        self._state_ctx.iter_forward_root = None
        """,
        """
        self._state_ctx.iter_forward_root = None
        pinned = (
            param.pin_memory
            for state in self._state_ctx.all_states
            for group in state._fsdp_param_groups
            for param in group.fsdp_params
        )
        if self._device.type == "cuda" and not torch.is_grad_enabled() and any(pinned):
            self._comm_ctx.all_gather_copy_in_stream.synchronize()
            self._device_handle.current_stream().synchronize()
        """,
    ),
)

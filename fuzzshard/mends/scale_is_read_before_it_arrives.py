"""``GradScaler`` reads its scale on the host before the copy of it has arrived.

``_MultiDeviceReplicator.get`` (torch/amp/grad_scaler.py) copies the inverse of the scale and
``found_inf`` to the device of each gradient with ``non_blocking=True``. That is safe from one
accelerator to another. For gradients on the host the copy goes to pinned memory and nothing waits
for it: ``unscale_`` multiplies by what that memory held before, and a copy of ``found_inf`` that
arrives late overwrites an overflow that was found. The fused Adam and Adagrad copy the scale and
``found_inf`` to the device of their parameters in the same way (torch/optim/adam.py); SGD waits.
So parameters are wrong or a step with infinite gradients is taken, depending on how busy the device
is. A copy to the host must be waited for.
"""

from itertools import product

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "GradScaler: offloaded gradients are unscaled by a value that has not arrived yet"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    'Divides ("unscales") the optimizer\'s gradient tensors by the scale factor.',
    "torch.amp.GradScaler.unscale_",
)
SETUP = (
    "A model is trained in float16 with a GradScaler on the accelerator, and fully_shard keeps "
    "parameters, gradients and the optimizer on the host (CPUOffloadPolicy)."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

mesh = init_device_mesh("cuda", (1,))
model = nn.Linear(1, 1, bias=False)
fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy())
optimizer = torch.optim.SGD(model.parameters())
scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
for step in range(3):
    scaler.scale(model(torch.ones(1, 1, device="cuda")).sum()).backward()
    torch.cuda._sleep(10**9)  # the device is busy, as it is in training
    scaler.unscale_(optimizer)
    gradient = model.weight.grad.full_tensor().item()
    assert gradient == 1.0, f"{gradient=} in step {step}, not 1"
    scaler.step(optimizer)
    scaler.update(8.0 * 2**step)
    optimizer.zero_grad()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/176429",
        "near: closed, the same copy in the scaler of FSDP1",
        "GradScaler unscale_ CPU offload gradients non_blocking copy of the scale not waited for",
        "2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.amp.grad_scaler:_MultiDeviceReplicator.get",
        "retval = self.master.to(device=device, non_blocking=True, copy=True)",
        """
        blocks = device.type == "cpu"
        retval = self.master.to(device=device, non_blocking=not blocks, copy=True)
        """,
    ),
    *(
        Edit(
            f"torch.optim.{name}:_fused_{name}",
            f"device, {value}.to(device, non_blocking=True)",
            f'device, {value}.to(device, non_blocking=device.type != "cpu")',
        )
        for name, value in product(("adam", "adagrad"), ("grad_scale", "found_inf"))
    ),
)

# torchrun --standalone --nproc-per-node 4 repro.py  (exits 1 while this is so)
# linear0.weight after the forward under fully_shard is not that of plain training with an all-reduce:
# observed 0 at [0, 1] of [1, 4], expected -0.940841854 at [0, 1] of [1, 4]. Found with torch 2.13.0+cpu.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        return h0


def values(shape, *name):  # the name alone decides the values
    seed = int.from_bytes("/".join(map(str, name)).encode(), "big") % (2**31 - 1)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


def build():
    model = Model()
    for name, p in model.named_parameters():
        p.data.copy_(values(p.shape, 0, name) / (p[0].numel() ** 0.5 if p.ndim > 1 else 1))
    return model.to(device)


def train(model):
    x = values((1, 4), 0, "input", "", 0, 0, rank).to(device)
    model(x)
    return {n: model.get_parameter(n) for n in names}


device = "cuda" if torch.cuda.device_count() >= 4 else "cpu"
mesh = init_device_mesh(device, (4,))
rank = dist.get_rank()
names = [name for name, _ in Model().named_parameters()]
reference = build()
expected = train(reference)
model = build()
fully_shard(model, mesh=mesh, reshard_after_forward=2)
observed = train(model)
for (name, want), got in zip(expected.items(), observed.values()):
    if name != "linear0.weight":
        continue
    got = got.full_tensor() if isinstance(got, DTensor) else got
    both = f"rank {rank}, {name}: expected\n{want}\nobserved\n{got}\n"
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m: both + m)
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit

# torchrun --standalone --nproc-per-node 2 repro.py  (exits 1 while this is so)
# The gradient of linear0.weight under zero_redundancy is not that of plain training with an all-reduce. Found
# with torch 2.15.0+cu132.
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        h0 = self.linear0(x)
        return h0


def average(parameters):
    for grad in [p.grad for p in parameters if p.grad is not None]:
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


def train(model):
    inner = getattr(model, "module", model)
    weight = inner.linear0.weight
    if isinstance(model, DistributedDataParallel):
        given = inner.parameters()
        optimizer = ZeroRedundancyOptimizer(given, optimizer_class=torch.optim.SGD, lr=0.125, momentum=0.5, foreach=True, nesterov=True)
    else:
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.125, momentum=0.5, foreach=True, nesterov=True)
    torch.manual_seed(1 + rank)
    x = torch.randn(1, 2, device=device)
    model(x).sum().backward()
    if model is reference:  # the engine does this by itself
        average(model.parameters())
    optimizer.step()
    model(x).sum().backward()
    if model is reference:  # the engine does this by itself
        average(model.parameters())
    return weight.grad


device = "cuda" if torch.cuda.device_count() >= 2 else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(dist.get_rank())
rank = dist.get_rank()
torch.manual_seed(0)
reference = Model().to(device)
model = copy.deepcopy(reference)
expected = train(reference)
model = DistributedDataParallel(model, find_unused_parameters=True)
observed = train(model)
both = f"rank {rank}, linear0.weight: expected\n{expected}\nobserved\n{observed}\n"
# A difference of up to atol could be rounding: sums in another order.
torch.testing.assert_close(observed, expected, rtol=0, atol=0.001, msg=lambda m: both + m)
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit

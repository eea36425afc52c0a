# python repro.py  (exits 1 while this is so)
# The gradient of weight under ZeroRedundancyOptimizer is not that of plain training. Found with torch
# 2.15.0+cu132.
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(model):
    inner = getattr(model, "module", model)
    if isinstance(model, DistributedDataParallel):
        given = inner.parameters()
        optimizer = ZeroRedundancyOptimizer(given, optimizer_class=torch.optim.SGD, lr=0.125, momentum=0.5, foreach=True, nesterov=True)
    else:
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.125)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return inner.weight.grad


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
reference = nn.Linear(2, 2)
model = copy.deepcopy(reference)
expected = train(reference)
model = DistributedDataParallel(model)
observed = train(model)
both = f"weight: expected\n{expected}\nobserved\n{observed}\n"
# A difference of up to atol could be rounding: sums in another order.
torch.testing.assert_close(observed, expected, rtol=0, atol=0.001, msg=lambda m: both + m)
dist.destroy_process_group()

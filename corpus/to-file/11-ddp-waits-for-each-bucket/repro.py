# Backward under DistributedDataParallel on two GPUs, with the NCCL backend of torch 2.15 and the
# one before. How much of the time of all-reduces is hidden behind backward?
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

if torch.cuda.device_count() < 2:
    print("This needs two GPUs.")
    sys.exit(2)


def milliseconds(run):
    for repeats in (5, 20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / 20 * 1000


def rank_main(rank, hidden, backend):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", "tcp://127.0.0.1:29511", rank=rank, world_size=2)
    layers = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(12))).cuda()
    x, buckets = torch.randn(4096, 4096).cuda(), torch.zeros(12, 4096 * 4097).cuda()
    alone = milliseconds(lambda: layers(x).sum().backward())
    reduced = milliseconds(lambda: [dist.all_reduce(bucket) for bucket in buckets])
    ddp = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=64)
    both = milliseconds(lambda: ddp(x).sum().backward())
    hidden[backend] = (alone + reduced - both) / reduced


if __name__ == "__main__":
    hidden = mp.get_context("spawn").Array("d", 2)
    for backend in (0, 1):
        os.environ["TORCH_DIST_USE_NCCL2"] = str(backend)  # read when a process imports torch
        mp.spawn(rank_main, (hidden, backend), nprocs=2)
    print(f"hidden, backend before: {hidden[0]:.0%}\nhidden, backend of 2.15: {hidden[1]:.0%}")
    sys.exit(hidden[1] < hidden[0] - 0.4)

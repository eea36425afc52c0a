# logsumexp(dim, keepdim=True) of a DTensor that is sharded along a dim behind the reduced one.
# Its result is a DTensor with the wrong placement, so full_tensor() has wrong values.
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x = torch.arange(8.0).view(2, 2, 2)
    expected = x.logsumexp(1, keepdim=True)
    result = distribute_tensor(x, init_device_mesh("cpu", (2,)), [Shard(2)]).logsumexp(1, True)
    observed = result.full_tensor()
    if rank == 0:
        print("expected:", (Shard(2),), tuple(expected.shape), expected.flatten().tolist())
        print("observed:", result.placements, tuple(observed.shape), observed.flatten().tolist())
    dist.destroy_process_group()
    sys.exit(expected.shape != observed.shape or not torch.allclose(observed, expected))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.Process(target=main, args=(rank, folder)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(any(process.exitcode for process in ranks))

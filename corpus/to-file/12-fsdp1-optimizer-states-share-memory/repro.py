# FullyShardedDataParallel on the CPU: a full state of the optimizer that is offloaded to the CPU
# has exp_avg_sq in the place of exp_avg.
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel


def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    cpu = torch.device("cpu")
    model = FullyShardedDataParallel(nn.Linear(2, 1), device_id=cpu, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[10.0, 20.0]])).sum().backward()
    optimizer.step()
    state = []
    for cpu_offload in (False, True):
        options = StateDictOptions(full_state_dict=True, cpu_offload=cpu_offload)
        found = get_optimizer_state_dict(model, optimizer, options=options)
        state.append(found["state"]["weight"]["exp_avg"].flatten().tolist() if rank == 0 else [])
    if rank == 0:
        print("expected:", state[0])
        print("observed:", state[1])
    dist.destroy_process_group()
    sys.exit(state[0] != state[1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.Process(target=main, args=(rank, folder)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(any(process.exitcode for process in ranks))

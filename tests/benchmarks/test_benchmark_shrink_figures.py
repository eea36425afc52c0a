import pytest
from trigger_size import ScriptSize, size_of_script

pytestmark = pytest.mark.slow

SCRIPT = """
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def run(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    plain = nn.Linear(2, 2)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (2,)))
    for _ in range(3):
        model(plain(plain.weight))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(run, (__file__ + ".store",), nprocs=2, start_method="fork")
"""


def test_the_size_of_a_script_is_measured_by_running_it(tmp_path):
    script = tmp_path / "trigger.py"
    script.write_text(SCRIPT)
    assert size_of_script(script) == ScriptSize(modules=3, forwards=3, ranks=2)


def test_a_script_that_does_not_run_has_no_size(tmp_path):
    script = tmp_path / "trigger.py"
    script.write_text("raise SystemExit")
    assert size_of_script(script) is None

import pytest
from hunt_rows import FOUND, MISSED, Row, Shrinking
from shrink_figures import read_worlds
from shrink_tables import compare, row_line, summary
from trigger_size import ScriptSize, size_of_script

from fuzzshard.errors import UsageError

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


def shrinking(worlds, seconds, *, same=True):
    return Shrinking(
        worlds=worlds, seconds=seconds, evaluations=10 * worlds, finished=True, same=same
    )


def found(name, seconds, *, modules=1, **fields):
    row = Row(id=name, difficulty="", outcome=FOUND, found=True, modules_after=modules, **fields)
    row.forwards_after, row.ranks_after = 2, 2
    row.shrinkings = [shrinking(1, seconds), shrinking(2, seconds / 2)]
    row.script_ok, row.script_lines = True, 40 + modules
    return row


def test_the_size_of_a_script_is_measured_by_running_it(tmp_path):
    script = tmp_path / "trigger.py"
    script.write_text(SCRIPT)
    assert size_of_script(script) == ScriptSize(modules=3, forwards=3, ranks=2)


def test_a_script_that_does_not_run_has_no_size(tmp_path):
    script = tmp_path / "trigger.py"
    script.write_text("raise SystemExit")
    assert size_of_script(script) is None


def test_numbers_of_worlds_stand_side_by_side():
    sums = summary([found("a", 4.0), found("b", 8.0), found("c", 20.0)], [], (1, 2))
    assert sums["1 worlds"]["median seconds"] == 8.0
    assert sums["2 worlds"]["median seconds"] == 4.0
    assert sums["1 worlds"]["90% seconds"] == pytest.approx(17.6)
    assert sums["speedup"] == {"1 worlds": 1.0, "2 worlds": 2.0}
    assert sums["scripts"]["median lines"] == 41


def test_a_minimal_case_is_held_against_the_script_of_a_person():
    comparisons = [
        compare(found("a", 1.0, modules=3), ScriptSize(6, 4, 2)),
        compare(found("b", 1.0, modules=2), ScriptSize(1, 0, 4)),
    ]
    assert comparisons[0].line() == "a: modules 3/6, forwards 2/4, ranks 2/2"
    sums = summary([], comparisons, (1,))
    assert sums["modules against the trigger"] == {"median": 1.25, "largest": 2.0}
    assert sums["forwards against the trigger"] == {"median": 1.25, "largest": 2.0}


def test_another_result_with_more_worlds_stands_out():
    row = found("a", 1.0)
    row.shrinkings[1].same = False
    assert row_line(row).count("ANOTHER RESULT") == 1
    assert "missed after 7 cases" in row_line(Row(id="b", difficulty="", outcome=MISSED, cases=7))


def test_numbers_of_worlds_are_read():
    assert read_worlds("1,2") == (1, 2)
    for text in ("0", "two", "1,"):
        with pytest.raises(UsageError):
            read_worlds(text)

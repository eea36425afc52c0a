"""``fully_shard`` over simulated streams: what waits, and what shows where it does not."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from fuzzshard.instruments.streams.clocks import Race, races
from fuzzshard.instruments.streams.events import Allocate, Launch, Wait
from fuzzshard.instruments.streams.simulated import SimulatedDevice
from fuzzshard.mending.patch import function_of
from fuzzshard.mending.source import NotAsKnown

PLANTED = Path(__file__).parents[2] / "benchmarks" / "faults" / "streams" / "mutants"
COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives:"
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group:"
STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:"


@pytest.fixture(autouse=True)
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def trained(**options: object) -> list[Race]:
    """Three layers, each in a group, for three steps."""
    device = SimulatedDevice()
    with device.recording() as recorder:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
        mesh = options.pop("mesh", None) or init_device_mesh("cpu", (2,))
        for layer in model:
            fully_shard(layer, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = recorder.trace()
    assert len({event.stream for event in trace if isinstance(event, Launch)}) >= 3
    assert any(isinstance(event, Wait) for event in trace)
    return races(trace)


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def hybrid() -> object:
    return init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))


@pytest.mark.parametrize("options", [{}, {"mp_policy": HALF}, {"reshard_after_forward": False}])
def test_fully_shard_waits_for_everything(options: dict[str, object]) -> None:
    assert trained(**options) == []


def test_hybrid_sharding_waits_for_everything() -> None:
    assert trained(mesh=hybrid()) == []


def without(fault: str, *targets: str) -> Callable[..., list[Race]]:
    """Train with a planted fault, which is taken away again."""

    def run(**options: object) -> list[Race]:
        functions = [function_of(target) for target in targets]
        if None in functions:
            pytest.skip("this torch has no such function")
        codes = [function.__code__ for function in functions]
        try:
            runpy.run_path(str(PLANTED / f"{fault}.py"))["apply"]()
        except NotAsKnown as error:
            pytest.skip(f"this torch has other lines: {error}")
        else:
            return trained(**options)
        finally:
            for function, code in zip(functions, codes, strict=True):
                function.__code__ = code

    return run


@pytest.mark.parametrize(
    ("fault", "target", "earlier", "later", "reused"),
    [
        (
            "gather_waits_for_copy_in",
            f"{COLLECTIVES}foreach_all_gather",
            "aten._foreach_copy_",
            "c10d._allgather_base_",
            False,
        ),
        (
            "copy_out_waits_for_gather",
            f"{COLLECTIVES}foreach_all_gather_copy_out",
            "c10d._allgather_base_",
            "aten.split_with_sizes_copy",
            False,
        ),
        (
            "gather_is_not_kept",
            f"{GROUP}FSDPParamGroup.wait_for_unshard",
            "aten.split_with_sizes_copy",
            "aten._foreach_copy_",
            True,
        ),
        (
            "reduce_waits_for_copy_in",
            f"{COLLECTIVES}foreach_reduce",
            "aten._chunk_cat",
            "c10d._reduce_scatter_base_",
            False,
        ),
        (
            "reduce_input_is_not_kept",
            f"{GROUP}FSDPParamGroup.post_backward",
            "c10d._reduce_scatter_base_",
            "aten.",
            True,
        ),
    ],
)
def test_an_order_that_is_missing_shows(
    fault: str, target: str, earlier: str, later: str, reused: bool
) -> None:
    found = without(fault, target)()
    pairs = {(r.earlier.event.name, r.later.event.name, r.reused) for r in found}
    assert any(
        a.startswith(earlier) and b.startswith(later) and again is reused for a, b, again in pairs
    ), pairs


def test_a_race_between_reduction_and_step_names_both_lines() -> None:
    target = f"{STATE}FSDPState._end_backward_iteration"
    found = without("end_waits_for_reductions", target)(mesh=hybrid())
    lines = {(race.earlier.event.where, race.later.event.where) for race in found}
    assert any("_fsdp_collectives.py" in a and "test_simulated.py" in b for a, b in lines), lines


def test_the_allocator_hands_out_the_smallest_free_block_of_the_stream() -> None:
    device = SimulatedDevice()
    with device.recording() as recorder:
        small, large = torch.ones(100), torch.ones(1000)
        addresses = [device.place(small), device.place(large)]
        del small, large
        again = torch.ones(90)
        assert device.place(again) == addresses[0]
        side = device.handle.Stream()
        with device.handle.stream(side):
            assert device.place(torch.ones(1000)) not in addresses
        assert device.place(torch.ones(1000)) == addresses[1]
    sizes = [event.size for event in recorder.trace() if isinstance(event, Allocate)]
    assert all(size % 512 == 0 for size in sizes)

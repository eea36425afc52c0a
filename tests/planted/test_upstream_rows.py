"""Every row of upstream's tests can fail: a fault that breaks what the row asserts turns a cell of
it red.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace
from planting import fault_file
from upstream_rows import UPSTREAM_ROWS

from fuzzshard.case import codec
from fuzzshard.verdict import Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.device import cuda_devices

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "corpus" / "upstream"


@dataclasses.dataclass(frozen=True)
class Broken:
    """A fault breaks what a row asserts in this ``cell`` of it; ``what`` must be told of the
    engine that the row is of.

    Where ``ops`` is given the cell runs that far: what is found by then is found in the whole cell
    too.
    """

    row: str
    cell: str
    fault: str
    what: str
    ops: int | None = None

    @property
    def signature(self) -> str:
        engine = "fsdp1" if self.row[0] in "MFE" else "fully_shard"
        return f"{'crash' if ' in ' in self.what else 'divergence'}/{engine}/{self.what}"


F1_UNIT = "strategy=full_shard,use_orig_params=False,input_requires_grad=False"
G1_ON_HSDP = "mesh=hsdp,raf=True,mode=all,reshard_after_backward=True,offload=None"

BROKEN = (
    Broken("M1", "test", "fsdp1_second_call_lost", "gradient", ops=2),
    Broken("I1", "device/test", "nested_inputs_lost", "output"),
    Broken("I1", "device/test", "inputs_elsewhere", "output"),
    Broken("P1", "raf=True,plan=multi", "not_resharded", "registration"),
    Broken("P1", "raf=False,plan=multi", "reshard_does_nothing", "registration"),
    Broken("P1", "raf=False,plan=multi", "wrong_registered_parameter", "registered_parameter"),
    Broken("P2", "raf=False,plan=multi", "unsharded_after_backward", "registration"),
    Broken("C1", "test", "reduces_in_the_first_dtype", "communication", ops=3),
    Broken("A1", "shapes=7-15-3", "short_shard_shifted", "gradient", ops=3),
    Broken("A2", "raf=True,delays=all_gather", "gathers_too_early", "output", ops=6),
    Broken("A3", "pin_memory=False,delays=none", "offloaded_gradient_lost", "gradient", ops=3),
    Broken("A4", "test", "inner_root_unsynchronised", "gradient/missing"),
    Broken("A5", "raf=True", "second_call_lost", "gradient", ops=3),
    Broken("A6", "test", "prefetch_gathers_zeros", "output", ops=2),
    Broken("A7", "test", "gathers_before_the_event", "output", ops=6),
    Broken("K1", "raf=True,implementation=utils", "recomputes_with_zeros", "gradient", ops=2),
    Broken("S1", "raf=True,checkpoint=False", "second_name_lost", "gradient", ops=3),
    Broken(
        "G1", f"{G1_ON_HSDP},reduce_scatter_only=False", "reduces_twice", "communication", ops=9
    ),
    Broken(
        "G1",
        f"{G1_ON_HSDP},reduce_scatter_only=True",
        "all_reduces_every_microbatch",
        "gradient/unexpected",
        ops=9,
    ),
    Broken(
        "G2", "explicit_unshard=True,reshard_after_backward=True", "async_unshard_lost", "output"
    ),
    Broken(
        "G2",
        "explicit_unshard=False,reshard_after_backward=True",
        "microbatch_lost",
        "unreduced_gradient/missing",
    ),
    Broken("D1", "raf=True,checkpoint=False,dim=16", "tp_output_not_summed", "output", ops=2),
    Broken("D2", "unpinned/test", "offloaded_gradient_lost", "gradient", ops=3),
    Broken(
        "D3", "sequence_parallel=False,reuse=True,optimizer=adam", "optimizer_not_loaded", "resume"
    ),
    Broken("N1", "raf=True,checkpoint=False,dim=17", "divides_by_world_size", "gradient", ops=3),
    Broken(
        "H1",
        "raf=True,checkpoint=False,dim=17,sync_at_last=True",
        "replicas_not_summed",
        "gradient",
        ops=9,
    ),
    Broken(
        "V1",
        "test",
        "method_not_unsharded",
        "RuntimeError in _try_replicate_spec_for_scalar_tensor",
    ),
    Broken("F1", f"{F1_UNIT},unfreeze=True", "fsdp1_late_reshard", "hooks"),
    Broken("F2", f"{F1_UNIT},forward_prefetch=False", "fsdp1_second_call_lost", "gradient"),
    Broken("F3", "strategy=full_shard,use_orig_params=False", "fsdp1_wrong_gradient", "gradient"),
    Broken(
        "F4",
        "strategy=full_shard,use_orig_params=False,offload=False,fp16=False,prefetch=pre",
        "fsdp1_moves_frozen_units",
        "parameter",
    ),
    Broken("E1", "strategy=full_shard", "fsdp1_checks_no_order", "expectation"),
    Broken("E2", "strategy=full_shard,iterations=1", "fsdp1_checks_no_order", "expectation"),
    Broken("E3", "strategy=full_shard", "fsdp1_checks_order_in_evaluation", "warning"),
    Broken(
        "Z1",
        "raf=False,checkpoint=False,freeze_after_init=False",
        "reduces_frozen_parameters",
        "communication",
        ops=3,
    ),
    Broken("Z2", "raf=True,unfreeze=False", "late_post_backward", "hooks"),
    Broken("Z2", "intended/raf=True,unfreeze=True", "unfrozen_not_reduced", "gradient/missing"),
    Broken("Z3", "raf=True", "second_call_lost", "gradient", ops=3),
)


def run(
    cell: str, fault: str, device: Literal["cpu", "cuda"] = "cpu", ops: int | None = None
) -> Verdict:
    """A cell with a fault: one that breaks what a row asserts, or one that breaks an oracle's
    rule.
    """
    case = codec.decode((CORPUS / f"{cell}.json").read_bytes())
    with World(
        WorldConfig(size=case.mesh.size, device=device, preload=(str(fault_file(fault)),))
    ) as world:
        return world.run(replace(case, schedule=case.schedule[:ops]))


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: f"{broken.row}-{broken.fault}")
def test_a_fault_in_what_a_row_asserts_turns_it_red(broken: Broken) -> None:
    verdict = run(f"{broken.row}/{broken.cell}", broken.fault, ops=broken.ops)
    assert verdict.signature == broken.signature, (
        verdict.status,
        verdict.findings[:3],
        verdict.message,
    )
    assert verdict.status.is_finding


@pytest.mark.gpu
@pytest.mark.skipif(cuda_devices() < 2, reason="this machine has no two CUDA devices")
def test_inputs_that_the_root_does_not_move_turn_i1_red() -> None:
    verdict = run("I1/test", "inputs_not_moved", device="cuda")
    assert verdict.signature == "divergence/fully_shard/output", (
        verdict.findings[:3],
        verdict.message,
    )


def test_a_tensor_on_another_device_is_told_by_its_device() -> None:
    first = run("I1/device/test", "inputs_elsewhere").findings[0]
    assert (first.observed[-9:], first.expected[-8:]) == (", on meta", ", on cpu")


def test_every_row_can_fail() -> None:
    assert {broken.row for broken in BROKEN} == set(UPSTREAM_ROWS)
    assert len(UPSTREAM_ROWS) == 32

"""Scripts of cases with the options of engines: they pass on stock torch, and fail under a planted
fault.
"""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from option_cases import (
    ALL,
    EXPECTED,
    FSDP1_CASE,
    OPTIONS,
    PRECISION,
    REBUILT,
    STATES,
    TENSOR_PARALLEL,
)
from planting import fault_file
from small_cases import SMALL

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.parts.ops import Forward
from fuzzshard.reproducer import script
from fuzzshard.verdict import Finding


def finding(case: Case, oracle: str = "exception", **more: object) -> Finding:
    values = {"observed": "", "expected": "", "op": len(case.schedule) - 1, **more}
    return Finding(oracle=oracle, engine=case.engines[-1], **values)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_a_script_of_a_crash_runs_the_whole_schedule_and_passes_on_stock_torch(
    run_script, case: Case
) -> None:
    validate(case)
    text = script(case, finding=finding(case))
    passing = run_script(text, case.mesh.size)
    assert not passing.fails, f"{text}\n{passing.output}"


@pytest.mark.parametrize(
    "name",
    [
        *("ddp", "extended", "fsdp1 on the meta device", "fsdp1 with apply"),
        *("averaged and scaled", "rebuilt"),
    ],
)
def test_a_script_that_compares_has_the_options_too_and_passes_on_stock_torch(
    run_script, name: str
) -> None:
    case = ALL[name]
    text = script(
        case, finding=finding(case, "parameter", op=len(case.schedule) - 1, name="linear0.weight")
    )
    passing = run_script(text, case.mesh.size)
    assert not passing.fails, f"{text}\n{passing.output}"


DIVIDED = finding(OPTIONS, "gradient", op=4, name="inner.right.weight")
LOADED = finding(STATES, "parameter", op=7, name="linear0.weight")
MOVED = finding(REBUILT, "parameter", op=6, name="linear0.weight")
PARALLEL = finding(
    TENSOR_PARALLEL, "parameter", op=2, name="linear0.weight", comparison="bounded", bound=1e-6
)
GATHERED = finding(SMALL, "communication", op=0, name="all-gathers", observed="2", expected="1")
EXPECTED_ERROR = finding(EXPECTED, "expectation", op=6)
CLIPPED = finding(FSDP1_CASE, op=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "found", "fault"),
    [
        (OPTIONS, DIVIDED, "divide_factor_ignored"),
        (STATES, LOADED, "loads_nothing"),
        (REBUILT, MOVED, "loads_nothing"),
        (TENSOR_PARALLEL, PARALLEL, "reduce_scatter_doubles"),
        (FSDP1_CASE, CLIPPED, "clips_flat_gradients_raises"),
        (SMALL, GATHERED, "gathers_once_more"),
    ],
    ids=["divide factor", "checkpoint", "mesh", "tensor parallel", "fsdp1", "communication"],
)
def test_a_script_fails_under_the_fault_that_was_planted_and_not_without(
    run_script, case: Case, found: Finding, fault: str
) -> None:
    text = script(case, finding=found)
    broken = run_script(text, case.mesh.size, preload=[fault_file(fault)])
    assert broken.fails, text
    assert "AssertionError" in broken.output or "planted" in broken.output, broken.output
    stock = run_script(text, case.mesh.size)
    assert not stock.fails, f"{text}\n{stock.output}"


def test_a_script_fails_where_an_expected_error_does_not_come(run_script) -> None:
    text = script(EXPECTED, finding=EXPECTED_ERROR)
    assert "if dist.get_rank() > 0:" in text
    silent = run_script(text, EXPECTED.mesh.size)
    assert silent.fails
    assert "AssertionError: nothing raised planted" in silent.output, silent.output


@pytest.mark.parametrize("engine", ["ddp", "replicate"])
def test_an_engine_that_moves_inputs_gets_them_as_they_are_and_the_reference_does_not(
    engine: str,
) -> None:
    case = replace(
        SMALL, engines=(engine,), inputs=replace(OPTIONS.inputs, tensors=SMALL.inputs.tensors)
    )
    gradient = finding(case, "gradient", op=1, name="linear0.weight")
    assert "(x.to(device) if model is reference else x)" in script(case, finding=gradient)
    assert ".to(device) if" not in script(case, finding=finding(case))


@pytest.mark.parametrize("engine", ["ddp", "replicate"])
def test_nothing_but_the_caller_moves_inputs_of_a_module_within(engine: str) -> None:
    within = Forward(target="linear0")
    inputs = replace(OPTIONS.inputs, tensors=SMALL.inputs.tensors)
    case = replace(SMALL, engines=(engine,), inputs=inputs, schedule=(within, *SMALL.schedule))
    text = script(case, finding=finding(case, "gradient", op=2, name="linear0.weight"))
    assert re.search(r"\.linear0\(x\w*\.to\(device\)\)", text), text


def test_what_no_script_can_compare_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="replay the case"):
        script(PRECISION, finding=finding(PRECISION, "gradient"))


def test_the_group_of_tensor_parallel_data_ranks_is_averaged_over() -> None:
    text = script(TENSOR_PARALLEL, finding=PARALLEL)
    assert 'mesh = world_mesh["dp"]' in text
    assert "group=group)" in text
    assert "divide_by" not in text


def test_imports_are_those_that_the_text_names() -> None:
    text = script(OPTIONS, finding=finding(OPTIONS))
    assert "import collections\nimport dataclasses\nimport os\n" in text
    assert "from torch.distributed.device_mesh import init_device_mesh" in text
    assert "DistributedDataParallel" not in text

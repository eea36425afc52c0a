"""Scripts of what is there or not, within an engine too: they fail with the fault, and pass
without.
"""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, STEP, chain, make_case
from planting import fault_file

from fuzzshard.case.case import Case, Optimizer, WrapGroup
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.errors import UsageError
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.oracle import MISSING
from fuzzshard.reproducer import scripts
from fuzzshard.verdict import Finding, Verdict
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow

ONE_STEP = make_case(schedule=(FORWARD, BACKWARD, STEP))
ADAM = make_case(schedule=(FORWARD, BACKWARD, STEP), optimizer=Optimizer(kind="adam"))

NO_SYNC = ops.SetFlag(flag="requires_gradient_sync", value=False)
ONE_LAYER = chain(a=Linear(out=4))
OF_B = ops.SetFlag(flag="requires_gradient_sync", value=False, target="b")


def judged(fault: str, case: Case) -> Verdict:
    config = WorldConfig(size=case.mesh.size, preload=(str(fault_file(fault)),))
    with World(config) as world:
        return world.run(case)


@pytest.mark.parametrize(
    ("fault", "case", "signature"),
    [
        ("keeps_unsharded_gradient", ONE_STEP, "unreduced_gradient/unexpected"),
        ("keeps_unsharded_memory", ONE_STEP, "leak/memory"),
        ("keeps_reduction_inputs", ONE_STEP, "leak/reduction"),
        ("leaves_a_hook", ONE_STEP, "leak/hook"),
        ("keeps_every_model", ONE_STEP, "leak/survivor"),
        ("misplaced_optimizer_state", ADAM, "leak/layout"),
        ("stale_spec_of_gradients", ONE_STEP, "leak/layout"),
    ],
)
def test_a_script_shows_what_is_left_behind(
    run_script, fault: str, case: Case, signature: str
) -> None:
    verdict = judged(fault, case)
    assert verdict.signature == f"divergence/fully_shard/{signature}"
    text = next(iter(scripts(case, signature=verdict.signature, findings=verdict.findings)))
    assert len(text.splitlines()) <= 60
    broken = run_script(text, case.mesh.size, preload=[fault_file(fault)])
    assert "AssertionError" in broken.output, f"{text}\n{broken.output}"
    stock = run_script(text, case.mesh.size)
    assert not stock.fails, f"{text}\n{stock.output}"


RESUMED = make_case(
    schedule=(
        *(FORWARD, BACKWARD, STEP),
        *(
            ops.SaveState(via="state_dict"),
            ops.CorruptState(how="rebuild"),
            ops.LoadState(),
            FORWARD,
        ),
    ),
    optimizer=Optimizer(kind="adam"),
)
SAVED_FIRST = make_case(
    schedule=(
        *(ops.SaveState(asynchronous=True), FORWARD, BACKWARD, STEP),
        *(ops.WaitForSave(), ops.CorruptState(), ops.LoadState()),
    ),
    optimizer=Optimizer(momentum=0.5),
    engines=("fully_shard",),
)
"""The save makes states of zeros, which are allowed."""
IN_ANY_DTYPE = make_case(
    ONE_LAYER,
    schedule=(ops.SetGradDtype(target=""), FORWARD, BACKWARD),
    wrap=(WrapGroup(modules=("",), precision=Precision(param="bfloat16")),),
    engines=("fully_shard",),
)
LOWERED = Precision(param="bfloat16", output="float32")
OUTPUTS_IN_FLOAT32 = make_case(
    wrap=tuple(WrapGroup(modules=(module,), precision=LOWERED) for module in ("a", "b", "")),
    schedule=(FORWARD, BACKWARD),
    engines=("fully_shard",),
)
BY_FSDP1 = make_case(engines=("fsdp1",), fsdp1=FSDP1(use_orig_params=True))


@pytest.mark.parametrize(
    ("fault", "case", "signature"),
    [
        ("optimizer_state_lost", RESUMED, "divergence/fully_shard/resume/missing"),
        ("fsdp1_loses_gradients", BY_FSDP1, "divergence/fsdp1/gradient/missing"),
        ("output_dtype_ignored", OUTPUTS_IN_FLOAT32, "divergence/fully_shard/module_input"),
        ("forgets_grad_dtypes", IN_ANY_DTYPE, "divergence/fully_shard/gradient"),
        ("saves_later_than_it_says", SAVED_FIRST, "divergence/fully_shard/resume"),
    ],
)
def test_a_script_shows_what_is_there_or_not(
    run_script, fault: str, case: Case, signature: str
) -> None:
    verdict = judged(fault, case)
    assert verdict.signature == signature
    text = next(iter(scripts(case, signature=signature, findings=verdict.findings)))
    assert "reference" not in text
    broken = run_script(text, case.mesh.size, preload=[fault_file(fault)])
    assert "AssertionError" in broken.output, f"{text}\n{broken.output}"
    stock = run_script(text, case.mesh.size)
    assert not stock.fails, f"{text}\n{stock.output}"


def held(detail: str, name: str, observed: str, expected: str, oracle: str = "leak") -> Finding:
    return Finding(
        oracle=oracle,
        engine="fully_shard",
        observed=observed,
        expected=expected,
        op=2,
        name=name,
        detail=detail,
    )


@pytest.mark.parametrize(
    "finding",
    [
        held("gather", "all-gather of a", "issued and never used", "none"),
        held("state", "state of a", "within a forward or backward", "idle"),
        held("reduction", "reduction of a", "a sum over shards that was not all-reduced", "none"),
        held(
            "buffer",
            "the last all-gather",
            "its output, which was copied out",
            "freed after forward",
        ),
    ],
    ids=lambda finding: finding.name,
)
def test_what_is_not_left_behind_is_not_shown(run_script, finding: Finding) -> None:
    text = next(
        iter(scripts(ONE_STEP, signature="divergence/fully_shard/leak", findings=[finding]))
    )
    result = run_script(text, 2)
    assert not result.fails, f"{text}\n{result.output}"


def test_an_unreduced_gradient_that_should_be_kept_is_missed(run_script) -> None:
    finding = held(MISSING, "a.weight", "None", "a tensor", "unreduced_gradient")
    text = next(iter(scripts(ONE_STEP, signature="", findings=[finding])))
    assert "should be kept" in run_script(text, 2).output


@pytest.mark.parametrize("observed", ["1.0", "a tensor of shape [4, 4], torch.float16"])
def test_what_waits_for_its_reduction_is_compared_by_no_script(observed: str) -> None:
    finding = held("", "a.weight", observed, observed, "unreduced_gradient")
    with pytest.raises(UsageError):
        list(scripts(ONE_STEP, signature="", findings=[finding]))

"""What a script says, without running it on ranks."""

from __future__ import annotations

import ast
import builtins
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cases import ROOT, chain, groups, make_case
from msgspec.structs import replace
from small_cases import EVERYTHING, SMALL

from fuzzshard.case.case import WAYS, Mesh, Optimizer
from fuzzshard.case.graph import Alias
from fuzzshard.case.options import DDP
from fuzzshard.errors import UsageError
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.reproducer import script
from fuzzshard.strategies import draw_cases
from fuzzshard.verdict import Finding

TYPICAL = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="1.5 at [0, 2] of [4, 4]",
    expected="0.75 at [0, 2] of [4, 4]",
    op=1,
    name="linear0.weight",
    comparison="bitwise",
    error=0.75,
    bound=0.0,
)


def texts(seed: int, count: int) -> Iterator[str]:
    """The scripts of drawn cases that compare something, as far as there can be one."""
    for case in [EVERYTHING, *draw_cases(seed, count, world_size=4)]:
        with contextlib.suppress(UsageError):
            yield script(case)


def test_a_typical_script_has_this_text() -> None:
    text = script(SMALL, finding=TYPICAL, torch_version="2.13.0")
    assert text == (Path(__file__).parent / "typical_script.txt").read_text()
    assert len(text.splitlines()) <= 60


def race(earlier: str) -> str:
    later = "aten.add_.Tensor writes self: float32[4] on the default stream (autograd)"
    finding = Finding(
        oracle="race",
        engine="fully_shard",
        observed=f"{later}, and before {earlier}",
        expected="one of the two waits for the other",
        op=1,
    )
    return script(SMALL, signature="divergence/fully_shard/race", finding=finding)


def test_a_script_of_a_race_delays_the_access_that_comes_first() -> None:
    access = "c10d._allgather_base_.default writes output_tensor: float32[8] on stream 2"
    file = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
    text = race(f"{access} ({file}:115 in __call__), memory that was handed out again")
    compile(text, "repro.py", "exec")
    assert 'if str(function) == "c10d._allgather_base_.default" and is_here():' in text
    assert f'f.endswith("{file}") and n == 115' in text
    assert "from torch.utils._python_dispatch import TorchDispatchMode" in text
    own = race(f"{access} (case.py:3 in step)")
    assert 'return not any("torch/distributed/" in file for file, _ in frames)' in own


@pytest.mark.parametrize(
    "earlier",
    [
        "the allocator frees a block of stream 2 (unknown line)",
        "a.b writes x on the host (c.py:1)",
    ],
)
def test_no_script_delays_the_allocator_or_the_host(earlier: str) -> None:
    with pytest.raises(UsageError):
        race(earlier)


def test_a_script_imports_torch_and_the_standard_library_only() -> None:
    for text in texts(3, 50):
        for node in ast.walk(ast.parse(text)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {n.partition(".")[0] for n in names} <= {"torch", *sys.stdlib_module_names}


def test_scripts_define_every_name_that_they_use() -> None:
    meshes = [Mesh(replicate=2, shard=2, made=way) for way in WAYS]
    on_meshes = [script(replace(SMALL, mesh=mesh)) for mesh in meshes]
    for text in (*on_meshes, *texts(6, 30)):
        nodes = [*ast.walk(ast.parse(text))]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        defined = (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)
        bound |= {node.name for node in nodes if isinstance(node, defined)}
        assert {node.id for node in names} <= bound | {*dir(builtins)}


@pytest.mark.slow
def test_every_drawn_case_gives_a_script_whatever_the_finding() -> None:
    for case in draw_cases(4, 100, world_size=4):
        last = len(case.schedule) - 1
        for oracle in ("replicas", "collectives", "exception", "deadline"):
            finding = Finding(
                oracle=oracle, engine="fully_shard", observed="", expected="", op=last
            )
            compile(script(case, finding=finding), "repro.py", "exec")
        for signature in (
            "divergence/fully_shard/output",
            "divergence/ddp/buffer",
            "crash/ddp/E in f",
        ):
            with contextlib.suppress(UsageError):
                compile(script(case, signature=signature), "repro.py", "exec")


def test_lines_are_short_enough_to_read() -> None:
    for text in texts(5, 50):
        found = [line for line in text.splitlines() if len(line) > 160]
        assert not found


def test_a_bounded_finding_is_compared_far_from_its_bound_and_from_its_error() -> None:
    finding = msgspec.structs.replace(TYPICAL, comparison="bounded", bound=1e-6)
    text = script(SMALL, finding=finding)
    assert "rtol=0, atol=0.0001" in text


@pytest.mark.parametrize(
    ("due", "says_so"), [("[1, 2], torch.float16", True), ("[2, 2], torch.float16", False)]
)
def test_a_wrong_dtype_of_the_right_shape_is_said_without_a_reference(
    due: str, says_so: bool
) -> None:
    finding = replace(
        TYPICAL,
        observed="a tensor of shape [1, 2], torch.float32",
        expected=f"a tensor of shape {due}",
        error=None,
    )
    text = script(SMALL, finding=finding)
    assert ("expected, observed = torch.float16, weight.grad.dtype" in text) == says_so
    assert ("reference" in text) != says_so


def test_ops_after_the_finding_are_left_out() -> None:
    later = msgspec.structs.replace(SMALL, schedule=(*SMALL.schedule, *SMALL.schedule))
    assert script(later, finding=TYPICAL) == script(SMALL, finding=TYPICAL)


def test_an_axis_of_one_rank_has_a_name_where_fully_shard_may_shard_a_parameter_twice() -> None:
    model = chain(inner=chain(p=Alias(target="outer")), outer=Linear(out=5))
    twice = make_case(model, wrap=groups("inner", ROOT), mesh=1)
    assert 'mesh = init_device_mesh(device, (1,), mesh_dim_names=("shard",))' in script(twice)
    assert "mesh = init_device_mesh(device, (1,))" in script(make_case(mesh=1))
    assert "mesh = init_device_mesh(device, (2,))" in script(replace(twice, mesh=Mesh(shard=2)))


def test_a_model_that_is_built_anew_is_on_a_mesh_that_is_sliced_anew() -> None:
    schedule = (ops.SaveState(), ops.CorruptState(how="rebuild"), ops.LoadState(), *SMALL.schedule)
    text = script(replace(SMALL, mesh=Mesh(shard=2, pipeline=1), schedule=schedule))
    assert 'def make_model(seed):\n    mesh = world_mesh["dp"]\n' in text


def test_a_script_waits_half_a_minute_for_a_lost_rank() -> None:
    text = script(SMALL, signature="desync/fully_shard")
    assert "timeout=timedelta(seconds=30)" in text


def test_a_registration_signature_needs_its_finding() -> None:
    with pytest.raises(UsageError):
        script(SMALL, signature="divergence/fully_shard/registration")


def test_a_script_says_that_steps_go_up_the_gradient() -> None:
    case = make_case(optimizer=Optimizer(maximize=True))
    assert "optimizer = torch.optim.SGD(" in script(case)
    assert ", maximize=True)" in script(case)
    assert "maximize" not in script(make_case(optimizer=Optimizer()))


def test_a_script_of_replicate_says_nothing_of_what_only_the_wrapper_has() -> None:
    case = make_case(ddp=DDP(manual_finalization=True), engines=("ddp", "replicate"))
    text = script(case, signature="divergence/ddp/parameter")
    assert "require_manual_backward_finalization = True" in text
    text = script(case, signature="divergence/replicate/parameter")
    assert "replicate(" in text
    assert "require_manual_backward_finalization" not in text


def test_a_script_steps_the_plain_model_without_fused_operators() -> None:
    text = script(make_case(optimizer=Optimizer(kind="adamw", flags=("fused",))))
    assert "fused=model is not reference)" in text
    assert "fused=True" not in text


def test_a_script_steps_the_plain_model_by_counts_as_exact_as_those_of_fused_operators() -> None:
    text = script(make_case(optimizer=Optimizer(kind="adamw", flags=("fused", "capturable"))))
    assert "fused=model is not reference, capturable=model is not reference)" in text
    text = script(make_case(optimizer=Optimizer(kind="adamw", flags=("capturable",))))
    assert "capturable=True" in text

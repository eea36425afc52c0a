"""What a script asserts in the end."""

from __future__ import annotations

from fuzzshard.analysis.dtypes import has_precision
from fuzzshard.parts.oracle import MISSING, SAME_TYPE, TensorType
from fuzzshard.parts.statements import indented
from fuzzshard.reproducer.from_finding import made_by_saves
from fuzzshard.reproducer.scope import Scope
from fuzzshard.reproducer.values import tolerance


def verdict(scope: Scope) -> list[str]:
    """Write what is looked at after the run."""
    assertion = scope.assertion
    match assertion.kind:
        case "compare":
            return _everything(scope) if assertion.op is None else _one(scope)
        case "presence":
            return _presence(scope)
        case "type":
            one, due = scope.watch.one(), TensorType.read(assertion.expected)
            assert due is not None
            expected, observed = due.dtype, f"{one}.dtype"
            if assertion.oracles[0].of_forward:
                expected, observed = due.expression, f"(list({one}.shape), {one}.dtype)"
            return [f"expected, observed = {expected}, {observed}", SAME_TYPE]
        case "alone":
            return assertion.rule.after(scope)
        case "desync":
            return ["dist.barrier()"]
        case "raise":
            return []


def _everything(scope: Scope) -> list[str]:
    """Compare all tensors that were kept."""
    only = []
    if scope.engine.in_stages:
        only = ["    if name.split()[-1] not in here:", "        continue"]
    return [
        "# Engines may add in another order; nobody has measured what that explains here.",
        "for (name, want), got in zip(expected.items(), observed.values()):",
        *only,
        '    both = f"rank {rank}, {name}: expected\\n{want}\\nobserved\\n{got}\\n"',
        f"    torch.testing.assert_close(got, want, {tolerance(scope.case, scope.assertion)}, "
        "equal_nan=True, msg=lambda m: both + m)",
    ]


def _one(scope: Scope) -> list[str]:
    """Compare the one tensor that the functions that train return."""
    case, assertion = scope.case, scope.assertion
    tolerances = tolerance(case, assertion)
    comment = ["# A difference of up to atol could be rounding: sums in another order."]
    lines = []
    computes = bool(case.tensor_parallel) or scope.engine.names_dims
    if scope.script.has_dtensors and (computes or not assertion.oracles[0].of_forward):
        offloads = any(group.offload for group in case.wrap)
        full = f"observed{'.to(device)' if offloads else ''}.full_tensor()"
        lines += ["if isinstance(observed, DTensor):", f"    observed = {full}"]
    dtypes = ", check_dtype=False" if has_precision(case) else ""
    lines += [
        f'both = f"rank {{rank}}, {assertion.name}: '
        f'expected\\n{{expected}}\\nobserved\\n{{observed}}\\n"',
        *(comment if tolerances[-6:] != "atol=0" else []),
        f"torch.testing.assert_close(observed, expected, {tolerances}{dtypes}, "
        "msg=lambda m: both + m)",
    ]
    if scope.engine.in_stages:
        return [f'if "{assertion.name.split()[-1]}" in here:', *indented(lines)]
    return lines


def _presence(scope: Scope) -> list[str]:
    """Return a gradient or an optimizer state that must be there, or must not."""
    one, who = scope.watch.one(), f"rank {{rank}}: {scope.assertion.name}"
    missing = scope.assertion.expected == MISSING
    if scope.assertion.oracles[0].is_state:
        expected, holds = "a state, observed None", "state is not None"
        if not missing:
            expected, holds = "no state, observed\\n{state}", "state is None"
            if (initial := made_by_saves(scope.case, scope.assertion.name)) is not None:
                expected = f"none but the initial {initial}, observed\\n{{state}}"
                holds += f" or (state == {initial}).all()"
        return [
            f"state = {one}",
            f'text = f"{who}: expected {expected}"',
            f"assert {holds}, text",
        ]
    spec = scope.engine
    if spec.has_units or (spec.in_stages and missing):
        return [
            f"here = torch.tensor(0.0 if {one} is None else 1.0, device=device)",
            "dist.all_reduce(here)",
            f'assert here > 0, "{scope.assertion.name}: expected a gradient, observed None on all '
            'ranks"',
        ]
    if missing:
        return [f'assert {one} is not None, f"{who}: expected a gradient, observed None"']
    return [f'assert {one} is None, f"{who}: expected no gradient, observed\\n{{{one}}}"']

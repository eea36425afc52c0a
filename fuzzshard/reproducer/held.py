"""What an engine holds within and should not, said by names that are private to torch.

They are those of :mod:`fuzzshard.engines.fully_shard.state`, which
:mod:`fuzzshard.oracles.after_run` judges.
"""

from __future__ import annotations

from fuzzshard.case.edit import split
from fuzzshard.errors import UsageError
from fuzzshard.model.statements import at, indented
from fuzzshard.reproducer.aim import OF_TYPE, Aim
from fuzzshard.reproducer.scope import Scope
from fuzzshard.verdict import IN_SPEC, MISSING

GROUPS = """
def groups(model):  # what fully_shard holds, by private names; torch < 2.12 has one group a module
    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    found = [vars(s).get("_fsdp_param_groups") or [s._fsdp_param_group] for s in states]
    return [group for several in found for group in several if group is not None]
"""

PART = """
def part(model, module, name):  # what fully_shard holds of one parameter
    parts = [p for group in groups(model) for p in group.fsdp_params]
    where = (module, name)
    return next(p for p in parts if (p._module_info.module, p._module_info.param_name) == where)
"""

UNREDUCED = """
def unreduced(model, module, name):  # what backwards have left of a gradient for a later reduction
    held = [p for group in groups(model) for p in group.fsdp_params]
    [p] = [p for p in held if (p._module_info.module, p._module_info.param_name) == (module, name)]
    grads = {p.unsharded_accumulated_grad, p._unsharded_param.grad}  # one tensor since torch 2.15
    return sum(grad for grad in grads if grad is not None)
"""

SOURCES = {"groups": GROUPS, "part": PART, "unreduced": UNREDUCED}
"""Helper functions by name."""


def held_before(scope: Scope) -> list[str]:
    """What has to be counted before the run."""
    aim = scope.aim
    if aim.kind != "held" or aim.detail != "hook":
        return []
    return [f"before = {_hook_count(scope)}"]


def held_lines(scope: Scope) -> list[str]:
    """The assertion after the run; raises :class:`UsageError` for what a script cannot name."""
    aim, model = scope.aim, scope.model
    match aim.detail:
        case "hook":
            return [
                f"after = {_hook_count(scope)}",
                f'text = f"rank {{rank}}: {{before}} {aim.name} before the run, {{after}} after '
                'it"',
                "assert after == before, text",
            ]
        case "layout":
            return _layout(scope)
        case "buffer":
            scope.uses.add("groups")
            return _nothing(
                f"[g.comm_ctx.all_gather_state for g in groups({model})]",
                "an all-gather that was copied out is kept",
            )
        case "memory":
            scope.uses |= {"groups", "part"}
            held = f"part({model}, {_owner(model, aim.name.removeprefix('unsharded '))})"
            return [
                f"held = {held}",
                "tensors = (*held.all_gather_outputs, *held._unsharded_inner_tensors)",
                "size = sum(t.untyped_storage().size() for t in tensors)",
                f'assert size == 0, f"rank {{rank}}: {{size}} bytes of {aim.name} are not freed"',
            ]
        case "unreduced" if aim.expected.startswith(OF_TYPE):
            expected = shape_and_dtype(aim.expected)
            return [
                f"grad = {unreduced(scope)}",
                f"expected, observed = {expected}, (list(grad.shape), grad.dtype)",
                'assert observed == expected, f"rank {rank}: expected {expected}, observed '
                '{observed}"',
            ]
        case "unreduced":
            scope.uses |= {"groups", "part"}
            return [
                f"held = part({model}, {_owner(model, aim.name)})",
                'computed = getattr(getattr(held, "_unsharded_param", None), "grad", None)',
                "grads = [held.unsharded_accumulated_grad, computed]",
                *_presence(aim),
            ]
        case _:
            return _of_group(scope)


def unreduced(scope: Scope) -> str:
    """The expression for the unreduced gradient of the parameter that is looked at."""
    scope.uses |= {"groups", "unreduced"}
    return f"unreduced({scope.model}, {_owner(scope.model, scope.aim.name)})"


def shape_and_dtype(text: str) -> str:
    """``"a tensor of shape [2], torch.float32"`` as a tuple of both."""
    shape, _, dtype = text.removeprefix(OF_TYPE).strip().rpartition(", ")
    return f"({shape}, {dtype})"


def outlives(lines: list[str], model: str) -> list[str]:
    """Runs ``lines`` in a function, and asserts that nothing of the model is there afterwards."""
    watched = f"[*{model}.named_modules(), *{model}.named_parameters()]"
    return [
        "",
        "",
        "def run():",
        *indented([*lines, f"return {{name: weakref.ref(thing) for name, thing in {watched}}}"]),
        "",
        "",
        "watched = run()",
        "while gc.collect():",
        "    pass",
        "left = [name or 'the root' for name, thing in watched.items() if thing() is not None]",
        'assert not left, f"rank {rank}: {left} outlive the model"',
    ]


def _presence(aim: Aim) -> list[str]:
    who = f"rank {{rank}}: {aim.name}"
    if aim.expected == MISSING:
        text = f'"{who}: an unreduced gradient should be kept, and is not"'
        return [f"assert any(grad is not None for grad in grads), f{text}"]
    text = f'"{who}: an unreduced gradient is kept: {{grads}}"'
    return [f"assert all(grad is None for grad in grads), f{text}"]


def _of_group(scope: Scope) -> list[str]:
    """What one group holds; the name ends with one of its modules, or with several."""
    aim = scope.aim
    scope.uses.add("groups")
    what, _, modules = aim.name.partition(" of ")
    first = modules.split(", ")[0].replace("the root", "")
    mine = f"for g in groups({scope.model}) if {at(scope.model, first)} in g.modules"
    match aim.detail:
        case "gather" if aim.expected == "none":
            return _nothing(
                f"[g._all_gather_result {mine}]", f"an {what} was issued and is not used"
            )
        case "reduction" if aim.observed.startswith("a sum"):
            return _nothing(
                f"[g._partial_reduce_output {mine}]", "a sum over shards was not all-reduced"
            )
        case "reduction":
            # one at most, before torch 2.12
            before = 'getattr(g.comm_ctx, "reduce_scatter_state", None)'
            inputs = f'*getattr(g.comm_ctx, "reduce_scatter_states", [{before}])'
            kept = f"[s {mine} for s in (g._post_reduce_event, g._all_reduce_state, {inputs})]"
            return _nothing(kept, "inputs or events of a reduction are kept")
        case "state" if aim.expected == "idle":
            states = f"{{g._training_state.name {mine}}}"
            return [
                f"states = {states}",
                'assert states == {"IDLE"}, f"rank {rank}: after the run the group is in '
                '{states}"',
            ]
    raise UsageError(f"no script looks at {aim.name}", "replay the case")


def _nothing(found: str, text: str) -> list[str]:
    return [
        f"kept = {found}",
        f'assert kept == [None] * len(kept), f"rank {{rank}}: {text}"',
    ]


def _layout(scope: Scope) -> list[str]:
    kind, _, fqn = scope.aim.name.partition(" of ")
    scope.uses.add("DTensor")
    made = f'state = optimizer.state[parameter]["{kind}"]'
    if kind == "gradient":
        made = "grad = parameter.grad"
    known = "(t.dtype, t.device, t.shape, t.placements if isinstance(t, DTensor) else None)"
    if IN_SPEC in scope.aim.observed + scope.aim.expected:
        known = "(t.dtype, t._spec.tensor_meta.dtype, t.device, t.shape, t.placements)"
    return [
        f"parameter = {at(scope.model, fqn)}",
        made,
        "layouts = [",
        f"    {known}",
        f"    for t in ({made.partition(' ')[0]}, parameter)",
        "]",
        f'text = f"rank {{rank}}: the {kind} is {{layouts[0]}}, its parameter {{layouts[1]}}"',
        "assert layouts[0] == layouts[1], text",
    ]


def _hook_count(scope: Scope) -> str:
    kind, _, name = scope.aim.name.partition(" of ")
    thing = at(scope.model, name.replace("the root", ""))
    return f'len(getattr({thing}, "{kind}", None) or ())'


def _owner(model: str, fqn: str) -> str:
    """The arguments that say which parameter is meant."""
    module, name = split(fqn)
    return f'{at(model, module)}, "{name}"'

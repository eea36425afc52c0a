"""How the model of a script gets its engine, as statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fuzzshard.analysis.groups import modules_named, wrapped_modules
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import root_groups
from fuzzshard.analysis.tensor_parallel import dim_along, layouts_of, values_of
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block
from fuzzshard.case.options import TensorParallel
from fuzzshard.parts.engines import REFERENCE, spec_of
from fuzzshard.parts.op import Below
from fuzzshard.parts.statements import at, call_lines, indented
from fuzzshard.program.setup import checkpoint_lines

_STYLES = {
    "colwise": "ColwiseParallel",
    "rowwise": "RowwiseParallel",
    "sequence": "SequenceParallel",
}


def prepared_lines(case: Case, engine: str, model: str) -> list[str]:
    """Return what is done to a model before it is wrapped."""
    spec = spec_of(engine)
    shards = spec.shards_stages(case)
    is_parallel = case.tensor_parallel and (spec.applies_groups or shards) and not spec.names_dims
    lines = _tensor_parallel_lines(case, model) if is_parallel else []
    return lines + checkpoint_lines(case, model, reference=engine == REFERENCE.name)


def _tensor_parallel_lines(case: Case, model: str) -> list[str]:
    """Return the plan, and ties, which it registers apart."""
    lines: list[str] = []
    for initial in dict.fromkeys(plan.initial for plan in case.tensor_parallel):
        styles = (plan for plan in case.tensor_parallel if plan.style != "dtensor")
        if plans := [plan for plan in styles if plan.initial == initial]:
            lines += _of_styles(case, model, initial, plans)
    for plan in case.tensor_parallel:
        if plan.style == "dtensor":
            lines += _of_dtensors(plan, at(model, plan.module))
    ties = (f"{at(model, tie.parameter)} = {at(model, tie.source)}" for tie in case.ties)
    return [*lines, *ties]


def _of_styles(case: Case, model: str, initial: str, plans: Sequence[TensorParallel]) -> list[str]:
    """Return the plan of modules whose parameters get their values from one rank, or each from its
    own. Where that matters, the other ranks have none.
    """
    ranks = {"first_rank": 0, "last_rank": (case.mesh.tensor or 1) - 1}
    lines = []
    if initial in ranks:
        modules = " ".join(f"{at(model, plan.module)}," for plan in plans)
        lines += [
            f'if world_mesh["tp"].get_local_rank() != {ranks[initial]}:',
            f"    for module in ({modules}):",
            "        for p in module.parameters():",
            "            p.data.zero_()",
        ]
    told = f", src_data_rank={ranks.get(initial)}" if initial in ("last_rank", "own") else ""
    entries = [line for plan in plans for line in _entry(case, plan)]
    lines += ["plan = {", *entries, "}"]
    return [*lines, f'parallelize_module({model}, world_mesh["tp"], plan{told})']


def _of_dtensors(plan: TensorParallel, module: str) -> list[str]:
    """Return the module computes with DTensors, and returns what all ranks have whole. A
    recomputation calls it with the DTensor that it has got.
    """
    along = placement(plan.dim)
    mesh = 'world_mesh["tp"]'
    own = [f"map_locally({module}, {mesh}, [{along}])"] if plan.local_map else []
    if plan.result == "style":
        layouts = [f"input_layouts=Replicate(), desired_input_layouts={along}"]
        layouts.append(f"output_layouts={along}, desired_output_layouts=Replicate()")
        style = call_lines("style = PrepareModuleInputOutput", layouts)
        distributed = f"distribute_module({module}, {mesh})"
        return [*own, *style, f"parallelize_module({distributed}, {mesh}, style)"]
    hint = "grad_placements=[Replicate()]" if plan.grad_placements else ""
    whole = f"full_tensor({hint})"
    if plan.result == "to_local":
        whole = f"redistribute(placements=[Replicate()], async_op=True).to_local({hint})"
    redistributed = "" if plan.local_map else f".redistribute(placements=[{along}])"
    return [
        *own,
        "distribute_module(",
        f"    {module}, {mesh},",
        "    input_fn=lambda module, args, mesh: (",
        "        args[0] if isinstance(args[0], DTensor)",
        f"        else DTensor.from_local(args[0], mesh, [Replicate()]{hint and f', {hint}'})",
        f"    ){redistributed},",
        f"    output_fn=lambda module, output, mesh: output.{whole},",
        ")",
    ]


def placement(dim: int | None) -> str:
    """Return how a tensor lies along an axis: in shards along ``dim``, if that is not None."""
    return "Replicate()" if dim is None else f"Shard({dim})"


def _entry(case: Case, plan: TensorParallel) -> list[str]:
    """Return the style of one module in the plan of ``parallelize_module``."""
    if plan.is_of_leaf:
        name, arguments = _STYLES[plan.style], _layouts(case, plan)
    else:
        both = [p for p in case.tensor_parallel if p.module == plan.module]
        first, *second = sorted(both, key=lambda p: p.style == "prepare_output")
        if plan == first:
            kinds = (
                "Output" if p.style == "prepare_output" else "Input" for p in (first, *second)
            )
            name = f"PrepareModule{''.join(kinds)}"
            local = "use_local_input" if second else "use_local_output"
            arguments = _prepared(case, first, local)
            arguments += [text for p in second for text in _prepared(case, p, "use_local_output")]
        else:
            return []  # it is in the entry of the other one
    *lines, last = call_lines(f'"{plan.module}": {name}', arguments)
    return indented([*lines, f"{last},"])


def _prepared(case: Case, plan: TensorParallel, local: str) -> list[str]:
    """Return what prepares some results of a block, or arguments by position or by keyword."""
    found = inferred(case)
    block = found.modules[plan.module]
    assert isinstance(block, Block)
    named = [*zip(*values_of(plan, block, found), strict=True)]
    before = {
        name: placement(dim_along(plan, plan.takes, value, case.inputs.seq))
        for name, value in named
        if name in plan.prepared
    }

    def layouts(along: Mapping[str, str]) -> str:
        if plan.style == "prepare" and block.passing == "keyword":
            texts = ", ".join(f'"{name}": {text}' for name, text in along.items())
            return f"{{{texts}}}"
        return f"({', '.join(along.get(name, 'None') for name, _ in named)},)"

    kind = "output_layouts" if plan.style == "prepare_output" else "input_layouts"
    if plan.style == "prepare" and block.passing == "keyword":
        kind = "input_kwarg_layouts"
    after = dict.fromkeys(before, placement(plan.dim))
    told = [f"{kind}={layouts(before)}", f"desired_{kind}={layouts(after)}"]
    is_default = plan.local_output == (plan.style == "prepare_output")
    return told if is_default else [*told, f"{local}={plan.local_output}"]


def _layouts(case: Case, plan: TensorParallel) -> list[str]:
    """Return the arguments of a style that splits a module."""
    takes, gives = layouts_of(plan, inferred(case), case.inputs.seq)
    if plan.style == "sequence":
        dim = [] if takes == 1 else [f"sequence_dim={takes}"]
        return [*dim, "use_local_output=True"] if plan.local_output else dim
    arguments = []
    if plan.input != "default":
        arguments.append(f"input_layouts={placement(takes)}")
    if plan.output != "default":
        arguments.append(f"output_layouts={placement(gives)}")
    return arguments if plan.local_output else [*arguments, "use_local_output=False"]


def each_wrapped(
    case: Case, model: str, below: Below, calls: Callable[[str], list[str]], *, guarded: bool
) -> list[str]:
    """Calls something on every wrapped module that is meant."""
    module, named = at(model, below.target), modules_named(case, wrapped_modules(case), below)
    if not named:
        return []
    if named == [below.target]:
        return if_wrapped(module, calls(module), guarded=guarded)
    return [
        f"for module in {module}.modules():",
        *indented(if_wrapped("module", calls("module"), guarded=True)),
    ]


def if_wrapped(module: str, lines: list[str], *, guarded: bool) -> list[str]:
    """Return ``lines``, which are for a wrapped module alone."""
    return [f"if isinstance({module}, FSDPModule):", *indented(lines)] if guarded else lines


def event_lines(case: Case, model: str, *, guarded: bool = False) -> list[str]:
    """Record what ran until now, for the all-gathers of every FSDP root, where the case says so.

    "This API should be called with a new event each iteration" (``set_post_optim_event``); and
    whenever parameters have changed since, as the all-gathers wait for nothing else then. Work on
    the CPU is done when the step returns, so an event there need not be recorded, and cannot be.
    """
    if not (case.optimizer.post_optim_event and case.wrap):
        return []
    lines = ["event = torch.Event(device)", 'if device == "cuda":', "    event.record()"]
    for root in dict.fromkeys(root_groups(case)):
        module = at(model, case.wrap[root].modules[0])
        lines += if_wrapped(module, [f"{module}.set_post_optim_event(event)"], guarded=guarded)
    return lines

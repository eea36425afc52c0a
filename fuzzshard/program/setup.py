"""How the model of a script is frozen, checkpointed and wrapped, as statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuzzshard.analysis.inferred import inferred, updates_buffers
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Alias, walk
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.statements import assignment, at
from fuzzshard.program.engine_script import EngineScript


def requires_grad_lines(
    case: Case, root: str, target: str, value: bool, script: EngineScript | None = None
) -> list[str]:
    """Sets ``requires_grad`` of the parameters whose FQN is at or below ``target``, and of no
    others; of a plain model, or of one that has what ``script`` says.
    """
    script = script or EngineScript()
    said = f"requires_grad_({value})"
    if target in inferred(case).parameters or _holds_others(case, target):
        return each_parameter_lines(case, root, target, said, script)
    return [f"{at(root, target)}.{said}"]


def each_parameter_lines(
    case: Case, root: str, target: str, said: str, script: EngineScript
) -> list[str]:
    """Says the same of every parameter whose FQN is at or below ``target``, and of no others."""
    if target in inferred(case).parameters:
        return [f"{script.parameter(root, target)}.{said}"]
    if not _holds_others(case, target):
        return [f"for p in {at(root, target)}.parameters():", f"    p.{said}"]
    names = tuple(fqn for fqn in inferred(case).parameters if is_within(fqn, target))
    named = script.named_parameter(root, "name")
    return [*assignment("names_below", names), "for name in names_below:", f"    {named}.{said}"]


def flat_requires_grad_lines(
    units: Mapping[str, Sequence[str]], root: str, target: str, value: bool
) -> list[str]:
    """Return the same, of the flat parameters of FSDP1: a unit is frozen as a whole."""
    named = [unit for unit, fqns in units.items() if is_within(fqns[0], target)]
    if all(is_within(unit, target) for unit in named):
        return [f"{at(root, target)}.requires_grad_({value})"]
    plain = at(root, target)
    return [
        f'getattr({at(root, unit)}, "_flat_param", {plain}).requires_grad_({value})'
        for unit in named
    ]


def _holds_others(case: Case, target: str) -> bool:
    """Whether an alias or a tie below ``target`` leads to parameters whose FQN is elsewhere."""
    links = [(path, m.target) for path, m in walk(case.model) if isinstance(m, Alias)]
    links += [(tie.parameter, tie.source) for tie in case.ties]
    return any(is_within(here, target) and not is_within(there, target) for here, there in links)


def freeze_lines(case: Case, root: str) -> list[str]:
    """Return the freezes before wrapping."""
    frozen = [f.target for f in case.freezes if not f.after_wrap]
    return [line for target in frozen for line in requires_grad_lines(case, root, target, False)]


def checkpoint_lines(case: Case, root: str, *, reference: bool) -> list[str]:
    """Return activation checkpointing, innermost first, as attributes are set on wrappers.

    A batch norm computed twice counts twice, also in the reference. That is checkpointed by
    ``torch.utils.checkpoint`` itself, which both APIs call; within it all is that engines
    checkpoint, as that decides what is computed again.
    """
    lines = []
    counted = [c.module for c in case.checkpoints if updates_buffers(case, c.module)]
    for checkpoint in sorted(case.checkpoints, key=lambda c: -c.module.count(".")):
        module = at(root, checkpoint.module)
        if reference:
            if checkpoint.implementation != "utils" and is_within_any(checkpoint.module, counted):
                again = f"functools.partial(checkpointed, {module}.forward, use_reentrant=False)"
                lines.append(f"{module}.forward = {again}")
        elif checkpoint.implementation == "composable":
            lines.append(f"checkpoint({module})")
        elif checkpoint.implementation == "wrapper":
            lines.append(f"{module} = checkpoint_wrapper({module})")
    return lines


def materialize_lines(case: Case, plain: list[str]) -> list[str]:
    """Give memory to a model that was wrapped on the meta device, and the values of the variable
    ``plain``, which these statements make.

    ``to_empty`` makes a new parameter at every place that has it, so ties are made again.
    Distributed values are the same on all ranks.
    """
    return [
        *_empty_lines(case),
        *(f"{place_of(case, 'model', t.parameter)} = model.{t.source}" for t in case.ties),
        *plain,
        "state = plain.state_dict()",
        "for name, t in model.state_dict().items():",
        "    value = state[name]",
        "    if isinstance(t, DTensor):",
        "        mesh, placements = t.device_mesh, t.placements",
        "        value = distribute_tensor(value, mesh, placements, src_data_rank=None)",
        "    t.copy_(value)",
        *(_HIDDEN if inferred(case).hides_buffers else []),
    ]


_HIDDEN = [
    "for t, value in zip(model.buffers(), plain.buffers()):  # some are in no state dict",
    "    (t.to_local() if isinstance(t, DTensor) else t).copy_(value)",
]


def _empty_lines(case: Case) -> list[str]:
    """Allocate; offloaded parameters are wanted on the CPU by then
    (``_validate_cpu_offload_params`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    owners = inferred(case).owners.items()
    offloaded = [n for n, o in owners if o is not None and case.wrap[o].offload]
    if not offloaded:
        return ["model.to_empty(device=device)"]
    modules = {name.rpartition(".")[0] for name in offloaded}
    beside = [n for n, _ in owners if n not in offloaded and n.rpartition(".")[0] in modules]
    return [
        *assignment("offloaded", offloaded),
        "on_host = {model.get_parameter(name) for name in offloaded}",
        "for module in reversed(list(model.modules())):",
        "    is_on_host = not on_host.isdisjoint(module.parameters(recurse=False))",
        '    module.to_empty(device="cpu" if is_on_host else device, recurse=False)',
        "    for name, buffer in module.named_buffers(recurse=False):",
        "        setattr(module, name, buffer.to(device))",
        *(
            f"{place_of(case, 'model', n)} = "
            f"nn.Parameter(model.{n}.detach().to(device), model.{n}.requires_grad)"
            for n in beside
        ),
    ]


def place_of(case: Case, model: str, path: str) -> str:
    """Return where a module or parameter of ``model`` is registered, below checkpoint wrappers:
    these hand out attributes of what they wrap, and do not set them.
    """
    wrappers = {c.module for c in case.checkpoints if c.implementation == "wrapper"}
    found, parent = model, ""
    for name in path.split("."):
        if parent in wrappers:
            found += "._checkpoint_wrapped_module"
        found, parent = f"{found}.{name}", f"{parent}.{name}" if parent else name
    return found

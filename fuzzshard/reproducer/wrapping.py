"""How the model of a script gets its engine, as statements."""

from __future__ import annotations

from fuzzshard.case.arrivals import ignored_modules
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.communication import CUSTOM
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Alias, Block, walk
from fuzzshard.case.units import unit_modules
from fuzzshard.model.expressions import class_name, constructor
from fuzzshard.parts.engines.fsdp1 import shards
from fuzzshard.reproducer.mesh import MeshNames
from fuzzshard.reproducer.options import (
    ddp_arguments,
    ddp_hook_lines,
    ddp_method_lines,
    fsdp1_arguments,
    fsdp1_hook_lines,
    group_arguments,
    parallel_style,
)
from fuzzshard.reproducer.scope import ENGINE_CLASSES, at
from fuzzshard.reproducer.setup import assignment, call_lines, checkpoint_lines, freeze_lines


def engine_lines(
    case: Case, engine: str, model: str, *, seeds: bool = False, made: list[str] | None = None
) -> list[str]:
    """Builds ``model`` and parallelises it in place; what an engine puts around it comes later.

    With ``seeds`` the values are those of the variable ``seed``. ``made`` are other statements
    that build it.
    """
    if engine != "fully_shard":
        lines = [
            *(made or [f"{model} = {build_call(case, seeds=seeds)}"]),
            *checkpoint_lines(case, model, reference=False),
        ]
        if engine == "replicate":
            ignored = [at(model, path) for path in ignored_modules(case, by_replicate=True)]
            told = [f"ignored_modules=[{', '.join(ignored)}]"] if ignored else []
            lines += _initial_lines(case, model, buffers=False)
            lines += call_lines("replicate", [model, *told, *_ddp_arguments(case)])
            lines += ddp_hook_lines(case.ddp, model, _group(case))
        return lines
    meta = case.init == "meta"
    lines = list(made or [f"{model} = {build_call(case, meta=meta, seeds=seeds)}"])
    if case.tensor_parallel:
        lines += _tensor_parallel_lines(case, model)
    lines += checkpoint_lines(case, model, reference=False)
    lines += wrap_lines(case, model)
    if meta:
        lines.append(f"materialize({model}{', seed' if seeds else ''})")
    return lines + ([f'{model}.compile(backend="{case.compile}")'] if case.compile else [])


def build_call(case: Case, *, meta: bool = False, seeds: bool = False) -> str:
    """Makes the plain model, on the device or on the ``meta`` device."""
    arguments = ["seed=seed"] * seeds
    if case.init == "meta":
        arguments = ['"meta"' if meta else "device", *arguments]
    return f"build({', '.join(arguments)})"


def _tensor_parallel_lines(case: Case, model: str) -> list[str]:
    """The plan, and what it registers anew: ties, and parameters that are to be frozen."""
    plans = [f'"{plan.module}": {parallel_style(plan)}' for plan in case.tensor_parallel]
    lines = ["plan = {", *(f"    {plan}," for plan in plans), "}"]
    lines.append(f'parallelize_module({model}, world_mesh["tp"], plan)')
    lines += [f"{at(model, tie.parameter)} = {at(model, tie.source)}" for tie in case.ties]
    return lines + freeze_lines(case, model, after_wrap=False)


def wrap_lines(case: Case, model: str) -> list[str]:
    """The ``fully_shard`` calls, and the calls on what they make."""
    lines, ignored = [], []
    if case.ignored:
        names = [fqn for fqn, owner in facts(case).owners.items() if owner is None]
        lines += [*assignment("ignored_names", names)]
        lines.append(f"ignored = {{{model}.get_parameter(name) for name in ignored_names}}")
        ignored = ["ignored_params=ignored"]
    for group in case.wrap:
        modules = ", ".join(at(model, path) for path in group.modules)
        listed = modules if len(group.modules) == 1 else f"[{modules}]"
        lines += call_lines(
            "fully_shard", [listed, "mesh=mesh", *group_arguments(group), *ignored]
        )
    if any("allocate" in group.communication for group in case.wrap):
        axis = "" if case.mesh.replicate is None else '"shard"'
        lines.append(
            f"dist.barrier(mesh.get_group({axis}))  # NCCL allocates for a communicator that is "
            "there"
        )
    told = {option for group in case.wrap for option in group.communication}
    lines += [line for option in CUSTOM if option in told for line in _CUSTOM_COMM[option]]
    for group in case.wrap:
        lines += _prefetch_lines(group, model)
        module = at(model, group.modules[0])
        lines += [
            f"{module}.{_COMMUNICATION[o]}" for o in group.communication if o in _COMMUNICATION
        ]
    if sharing := [
        at(model, g.modules[0]) for g in case.wrap if "share_streams" in g.communication
    ]:
        lines.append(f"share_comm_ctx([{', '.join(sharing)}])")
    if case.finalize is not None:
        lines.append(f"{model}.set_manual_backward_finalization(True)")
    for path in (path for group in case.wrap for path in group.modules):
        block = facts(case).modules[path]
        if isinstance(block, Block) and block.method != "forward":
            lines.append(f'register_fsdp_forward_method({at(model, path)}, "{block.method}")')
    return lines


_COMMUNICATION = {
    "sum": "set_force_sum_reduction_for_comms(True)",
    "allocate": "set_allocate_memory_from_process_group_for_comm(True)",
    "two_buffers": "set_reduce_scatter_max_input_buffers(2)",
    "hook": "set_all_reduce_hook(lambda output: None)",
    "hook_stream": (
        "set_all_reduce_hook(lambda output: None, stream=torch.get_device_module(device).Stream())"
    ),
    "custom_gather": "set_custom_all_gather(PlainAllGather())",
    "custom_scatter": "set_custom_reduce_scatter(PlainReduceScatter())",
    "separate_group": "set_separate_reduce_scatter_group(True)",
    "keep_storage": "set_keep_unsharded_storage(True, recurse=False)",
    "zeros_for_unused": "set_reduce_scatter_unused_params(True, recurse=False)",
    "no_backward_unshard": "set_unshard_in_backward(False)",
}
_ALLOCATE = [
    "    def allocate(self, size, *, dtype, device):",
    "        return torch.empty(*size, dtype=dtype, device=device)",
    "",
]
_CUSTOM_COMM = {
    "custom_gather": [
        "class PlainAllGather:  # as fully_shard does it by itself",
        *_ALLOCATE,
        "    def __call__(self, output_tensor, input_tensor, group, async_op=False):",
        "        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)",
        "",
    ],
    "custom_scatter": [
        "class PlainReduceScatter:  # as fully_shard does it by itself",
        *_ALLOCATE,
        "    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):",
        "        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, "
        "async_op)",
        "",
    ],
}


def _prefetch_lines(group: WrapGroup, model: str) -> list[str]:
    lists = {"forward": group.forward_prefetch, "backward": group.backward_prefetch}
    return [
        f"{at(model, group.modules[0])}.set_modules_to_{when}_prefetch"
        f"([{', '.join(at(model, path) for path in paths)}])"
        for when, paths in lists.items()
        if paths
    ]


def around_lines(case: Case, engine: str, model: str, variable: str) -> list[str]:
    """Assigns to ``variable`` what the engine puts around ``model``, if it does."""
    if engine not in ENGINE_CLASSES:
        return []
    if engine == "ddp":
        return [
            *_initial_lines(case, model, buffers=case.ddp.buffers != "local"),
            *call_lines(f"{variable} = DistributedDataParallel", [model, *_ddp_arguments(case)]),
            *ddp_hook_lines(case.ddp, variable, _group(case)),
            *ddp_method_lines(case.ddp, variable),
        ]
    lines = _fsdp1_initial_lines(case, model)
    lines += _fsdp1_lines(case, model, variable)
    lines += _DOUBLE if case.fsdp1.initial == "applied" else []
    lines += [f"{variable}.apply(double)"] if case.fsdp1.initial == "applied" else []
    group = "dist.group.WORLD" if MeshNames(case).flat else "group"
    return lines + fsdp1_hook_lines(case.fsdp1, variable, group, shards=shards(case))


_DOUBLE = [
    "doubled = set()",
    "def double(module):",
    "    for p in set(module.parameters(recurse=False)) - doubled:",
    "        doubled.add(p)",
    "        p.data *= 2",
]


def _fsdp1_initial_lines(case: Case, model: str) -> list[str]:
    """Takes their values from parameters, before FSDP1 gives them back."""
    match case.fsdp1.initial:
        case "applied":
            return [
                "with torch.no_grad():",
                f"    torch._foreach_mul_(list({model}.parameters()), 0.5)",
            ]
        case "first_rank":
            tensors = f"(*{model}.parameters(), *{model}.buffers())"
            return ["if rank > 0:", f"    for tensor in {tensors}:", "        tensor.data.zero_()"]
        case "meta":
            return [
                f"plain = dict(zip({model}.modules(), copy.deepcopy({model}).modules()))",
                f'{model}.to("meta")',
                "def initialize(module):",
                "    module.to_empty(device=device, recurse=False)",
                "    for kind in (nn.Module.parameters, nn.Module.buffers):",
                "        for tensor, value in zip(kind(module, False), kind(plain[module], "
                "False)):",
                "            tensor.data.copy_(value)",
            ]
        case _:
            return []


def _initial_lines(case: Case, model: str, *, buffers: bool) -> list[str]:
    """Takes their values from all ranks but the first, before DDP synchronises them."""
    if case.ddp.initial != "first_rank":
        return []
    tensors = (
        f"(*{model}.parameters(), *{model}.buffers())" if buffers else f"{model}.parameters()"
    )
    return ["if rank > 0:", f"    for tensor in {tensors}:", "        tensor.data.zero_()"]


def _group(case: Case) -> str:
    return "None" if MeshNames(case).flat else "group"


def _ddp_arguments(case: Case) -> list[str]:
    """Buffers, if there are any, are left alone as the other engines do, unless the case says
    otherwise.
    """
    arguments = ddp_arguments(case.ddp, has_buffers=bool(facts(case).batch_norms))
    if case.ddp.device_mesh:
        arguments.append("device_mesh=mesh")
    elif not (names := MeshNames(case)).flat:
        arguments.append(names.process_group)
    if case.inputs.on_host:
        arguments.append('device_ids=None if device == "cpu" else [torch.cuda.current_device()]')
    return arguments


def _fsdp1_lines(case: Case, model: str, variable: str) -> list[str]:
    """Units bottom-up, or by a policy; a module that is registered twice is replaced twice."""
    arguments = ["device_id=torch.device(device)"]
    names = MeshNames(case)
    if "hybrid" in case.fsdp1.strategy or case.fsdp1.device_mesh:
        arguments.append("device_mesh=mesh")
    elif not names.flat:
        arguments.append(names.process_group)
    arguments += fsdp1_arguments(case.fsdp1)
    arguments += ["param_init_fn=initialize"] if case.fsdp1.initial == "meta" else []
    units = unit_modules(case)
    if not units:
        return call_lines(f"{variable} = FullyShardedDataParallel", [model, *arguments])
    if case.fsdp1.wrapping == "policy":
        listed = ", ".join(at(model, unit) for unit in units)
        policy = _policy(case, units)
        lines = [f"units = [{listed}]"]
        return lines + call_lines(
            f"{variable} = FullyShardedDataParallel",
            [model, *arguments, f"auto_wrap_policy={policy}"],
        )
    lines = call_lines("options = dict", arguments)
    for unit in units:
        place = _place(case, model, unit)
        lines.append(f"{place} = FullyShardedDataParallel({place}, **options)")
        aliases = [
            path for path, m in walk(case.model) if isinstance(m, Alias) and m.target == unit
        ]
        lines += [f"{_place(case, model, alias)} = {place}" for alias in aliases]
    return [*lines, f"{variable} = FullyShardedDataParallel({model}, **options)"]


def _place(case: Case, model: str, path: str) -> str:
    """Where a module is registered, below the wrappers of its parents: attributes are set on
    these.
    """
    wrappers = {c.module for c in case.checkpoints if c.implementation == "wrapper"}
    found, parent = model, ""
    for name in path.split("."):
        if parent in wrappers:
            found += "._checkpoint_wrapped_module"
        found, parent = f"{found}.{name}", f"{parent}.{name}" if parent else name
    return found


def _policy(case: Case, units: tuple[str, ...]) -> str:
    """By class where all modules of the units' classes are units, as the engine has it; else one
    by one.
    """
    wrapped = {c.module for c in case.checkpoints if c.implementation == "wrapper"}

    def of(path: str) -> str:
        module = facts(case).modules[path]
        kind = constructor(module, 1, class_name(path)).partition("(")[0]
        return "CheckpointWrapper" if path in wrapped else kind

    modules = facts(case).modules
    others = [of(path) for path in modules if path and path not in units]
    inner = [part for leaf in facts(case).leaves.values() for part in leaf.apart(1).values()]
    others += [part.constructor(1).partition("(")[0] for part in inner]
    if {of(path) for path in units}.isdisjoint(others):
        return "ModuleWrapPolicy({type(unit) for unit in units})"
    return "CustomPolicy(lambda module: module in units)"

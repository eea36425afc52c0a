"""What scripts of FSDP1 say."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.units import ROOT, unit_modules, units
from fuzzshard.case.graph import Alias, walk
from fuzzshard.model.expressions import class_name, constructor
from fuzzshard.parts.options.fsdp1 import shards
from fuzzshard.parts.statements import at, call_lines, indented
from fuzzshard.program.engine_script import EngineScript
from fuzzshard.program.setup import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fuzzshard.case.case import Case
    from fuzzshard.case.options import FSDP1
    from fuzzshard.program.mesh import MeshNames
    from fuzzshard.subject.subject import Variation


def _hook_lines(case: Case, fsdp: str, group: str, *, shards: bool) -> list[str]:
    """Registers the communication hook on ``fsdp``, if there is one."""
    spec = case.fsdp1
    if spec.hook is None:
        return []
    if spec.hook != "average":
        names = {"torch": "reduce_scatter_hook" if shards else "allreduce_hook"}
        name = names.get(spec.hook, f"{spec.hook}_compress_hook")
        state = f"default_hooks.DefaultState({group})"
        if spec.averages_in_half:
            state = f"default_hooks.LowPrecisionState({group}, torch.{case.dtype})"
        return [f"{fsdp}.register_comm_hook({state}, default_hooks.{name})"]
    reduced = (
        "dist.reduce_scatter_tensor(shard, grad, group=group)"
        if shards
        else "dist.all_reduce(grad, group=group)"
    )
    one = "shard" if shards else "grad"
    policy = spec.precision
    first = policy and (policy.reduce or policy.param) == "float16"
    lines = ["grad /= group.size()", reduced] if first else [reduced, f"{one} /= group.size()"]
    return [
        f"def average_hook(group, grad{', shard' if shards else ''}):",
        *(f"    {line}" for line in lines),
        f"{fsdp}.register_comm_hook({group}, average_hook)",
    ]


_SUMMONED = {
    "written": "",
    "discarded": ", writeback=False",
    "on_host": ", writeback=False, offload_to_cpu=True",
    "first_rank": ", writeback=False, rank0_only=True",
    "gradients": ", with_grads=True",
    "discarded_gradients": ", writeback=False, with_grads=True",
    "root": ", recurse=False",
}


def _scaled(fsdp: str, factor: float, *, gradients: bool) -> list[str]:
    """Multiply what the parameters hold at the moment, with their gradients or without."""
    lines = [f"torch._foreach_mul_(list({fsdp}.parameters()), {factor})"]
    if gradients:
        lines += [f"for p in {fsdp}.parameters():", "    if p.grad is not None:"]
        lines += [f"        p.grad.mul_({factor})"]
    return lines


def _summon_lines(spec: FSDP1, fsdp: str, *, shards: bool) -> list[str]:
    """Return what happens to the full parameters beside a step."""
    if spec.summon is None:
        return []
    call = f"FullyShardedDataParallel.summon_full_params({fsdp}{_SUMMONED[spec.summon]})"
    discards = spec.summon.startswith("discarded")
    if spec.summon in ("on_host", "first_rank", "root") or (discards and not shards):
        return [f"with {call}:", "    pass"]
    scaled = functools.partial(_scaled, fsdp, gradients=spec.summons_gradients)
    lines = [f"with {call}, torch.no_grad():", *indented(scaled(0 if discards else 2))]
    return lines if discards else [*lines, "with torch.no_grad():", *indented(scaled(0.5))]


_DOUBLE = [
    "doubled = set()",
    "def double(module):  # one with two names comes twice, and its parameters may be others then",
    "    if module not in doubled:",
    "        for p in set(module.parameters(recurse=False)) - doubled:",
    "            p.data *= 2",
    "        doubled.update((module, *module.parameters(recurse=False)))",
]


def _initial_lines(case: Case, model: str) -> list[str]:
    """Takes their values from parameters, before FSDP1 gives them back."""
    if case.fsdp1.initial == "applied":
        return [
            "with torch.no_grad():",
            f"    torch._foreach_mul_(list({model}.parameters()), 0.5)",
        ]
    if case.fsdp1.initial == "first_rank":
        tensors = f"(*{model}.parameters(), *{model}.buffers())"
        return ["if rank > 0:", f"    for tensor in {tensors}:", "        tensor.data.zero_()"]
    if case.fsdp1.initial == "meta":
        return [
            f"plain = dict(zip({model}.modules(), copy.deepcopy({model}).modules()))",
            f'{model}.to("meta")',
            "def initialize(module):",
            "    module.to_empty(device=device, recurse=False)",
            "    for kind in (nn.Module.parameters, nn.Module.buffers):",
            "        for tensor, value in zip(kind(module, False), kind(plain[module], False)):",
            "            tensor.data.copy_(value)",
        ]
    return []


def _unit_lines(case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
    """Units bottom-up, or by a policy; a module that is registered twice is replaced twice."""
    arguments = ["device_id=torch.device(device)"]
    if case.fsdp1.takes_mesh:
        arguments.append("device_mesh=mesh")
    elif not names.flat:
        arguments.append(names.process_group)
    arguments += case.fsdp1.arguments()
    below = unit_modules(case)
    whole = [*units(case)][::2] if case.fsdp1.strategy == "mixed" else []
    of_root = [*arguments, *["sharding_strategy=ShardingStrategy.NO_SHARD"] * (ROOT in whole)]
    if not below:
        return call_lines(f"{variable} = FullyShardedDataParallel", [model, *of_root])
    if case.fsdp1.wrapping == "policy":
        lines = [f"units = [{', '.join(at(model, unit) for unit in below)}]"]
        if whole:
            kinds = {unit: "NO_SHARD" if unit in whole else "FULL_SHARD" for unit in below}
            lines = call_lines(
                "units = ",
                [
                    f'{at(model, unit)}: {{"sharding_strategy": ShardingStrategy.{kind}}}'
                    for unit, kind in kinds.items()
                ],
                "{}",
            )
        return lines + call_lines(
            f"{variable} = FullyShardedDataParallel",
            [model, *of_root, f"auto_wrap_policy={_policy(case, below)}"],
        )
    lines = call_lines("options = dict", arguments)
    if whole:
        lines.append('whole = options | {"sharding_strategy": ShardingStrategy.NO_SHARD}')
    told = {unit: "whole" if unit in whole else "options" for unit in (*below, ROOT)}
    for unit in below:
        place = place_of(case, model, unit)
        lines.append(f"{place} = FullyShardedDataParallel({place}, **{told[unit]})")
        aliases = [
            path for path, m in walk(case.model) if isinstance(m, Alias) and m.target == unit
        ]
        lines += [f"{place_of(case, model, alias)} = {place}" for alias in aliases]
    return [*lines, f"{variable} = FullyShardedDataParallel({model}, **{told[ROOT]})"]


def _policy(case: Case, units: tuple[str, ...]) -> str:
    """By class where all modules of the units' classes are units, as the engine has it; else one
    by one.
    """
    if case.fsdp1.strategy == "mixed":
        return "CustomPolicy(lambda module: units.get(module, False))"
    wrapped = {c.module for c in case.checkpoints if c.implementation == "wrapper"}

    modules = inferred(case).modules
    kinds = {
        path: constructor(module, 1, class_name(path)).partition("(")[0]
        for path, module in modules.items()
    }

    def of(path: str) -> str:
        return "CheckpointWrapper" if path in wrapped else kinds[path]

    others = [of(path) for path in modules if path and path not in units]
    others += [kinds[path] for path in wrapped]
    inner = [part for leaf in inferred(case).leaves.values() for part in leaf.apart(1).values()]
    others += [part.constructor(1).partition("(")[0] for part in inner]
    if {of(path) for path in units}.isdisjoint(others):
        return "ModuleWrapPolicy({type(unit) for unit in units})"
    return "CustomPolicy(lambda module: module in units)"


class FSDP1Script(EngineScript):
    """Puts ``FullyShardedDataParallel`` around every unit, the model among them."""

    variable = "fsdp"
    sources = """
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy
"""
    wraps_blocks = True

    @override
    def flat_units(self, case: Case) -> Mapping[str, tuple[str, ...]]:
        return {} if case.fsdp1.use_orig_params else units(case)

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        detail = case.fsdp1.debug == "detail"
        lines = ["dist.set_debug_level(dist.DebugLevel.DETAIL)"] if detail else []
        lines += _initial_lines(case, model)
        lines += _unit_lines(case, model, variable, names)
        if case.fsdp1.initial == "applied":
            lines += [*_DOUBLE, f"{variable}.apply(double)"]
        return lines + _hook_lines(case, variable, names.group, shards=shards(case))

    @override
    def clip_line(self, called: str, arguments: str) -> str:
        return f"{called}.clip_grad_norm_({arguments})"

    @override
    def scaler_call(self, arguments: list[str], names: MeshNames) -> str:
        return f"ShardedGradScaler({', '.join(arguments)}, process_group={names.group})"

    @override
    def overflow_lines(self, case: Case, called: str, parameters: str, which: int) -> list[str]:
        """Summon gradients, with which frozen parameters have some too; those of a case in float64
        come into a buffer of the default dtype (_flat_param.py, ``unshard_grad``).
        """
        trained = f"[p for p in {parameters} if p.requires_grad]"
        lines = [
            f"with FullyShardedDataParallel.summon_full_params({called}, with_grads=True):",
            f"    overflow({trained}, {which})",
        ]
        if case.dtype != "float64":
            return lines
        default = "torch.set_default_dtype(torch.{})".format
        return [default("float64"), *lines, default("float32")]

    @override
    def beside_step(self, case: Case, called: str) -> tuple[list[str], list[str]]:
        lines = _summon_lines(case.fsdp1, called, shards=shards(case))
        return (lines, []) if case.fsdp1.summons_gradients else ([], lines)

    @override
    def gathered_lines(self, case: Case, called: str, value: str, *, gradient: bool) -> list[str]:
        """Return the gradient of a flat parameter as what a step makes of it."""
        arguments, lines = called, []
        if gradient and not case.fsdp1.use_orig_params:
            lines = [
                "# FSDP1 gathers parameters and no flat gradients: a step of length 1 shows "
                "these.",
                f"torch.optim.SGD({called}.parameters(), lr=1.0).step()",
            ]
        elif gradient:
            value, arguments = f"{value}.grad", f"{called}, with_grads=True"
        return [
            *lines,
            f"with FullyShardedDataParallel.summon_full_params({arguments}):",
            f"    return {value}.detach().clone()",
        ]

    @override
    def model_lines(self, blocks: Sequence[str], variation: Variation) -> list[str]:
        kinds = {False: "SHARD_GRAD_OP", True: "FULL_SHARD", None: "FULL_SHARD"}
        hybrid = {False: "_HYBRID_SHARD_ZERO2", True: "HYBRID_SHARD", None: "HYBRID_SHARD"}
        strategies = (f"ShardingStrategy.{kind[variation.reshard]}" for kind in (hybrid, kinds))
        told = [f"sharding_strategy={' if mesh.ndim > 1 else '.join(strategies)}"]
        if variation.param_dtype:
            dtypes = f"torch.{variation.param_dtype}, torch.float32"
            told.append(f"mixed_precision=MixedPrecision({dtypes})")
        return [
            f"blocks = [{', '.join(blocks)}]",
            "fsdp = FullyShardedDataParallel(",
            "    model,",
            "    device_id=torch.device(device),",
            "    device_mesh=mesh,",
            "    auto_wrap_policy=CustomPolicy(lambda module: module in blocks),",
            "    use_orig_params=True,",
            *(f"    {argument}," for argument in told),
            ")",
        ]


SCRIPT = FSDP1Script()

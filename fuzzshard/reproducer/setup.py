"""How the model of a script is frozen, checkpointed and wrapped, as statements."""

from __future__ import annotations

import pprint

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.graph import Alias, BatchNorm, walk
from fuzzshard.case.paths import is_within


def at(root: str, path: str) -> str:
    """The expression for the module or parameter at ``path`` below the variable ``root``."""
    return f"{root}.{path}" if path else root


def assignment(name: str, value: object) -> list[str]:
    """Assigns a literal, over several lines where it is long."""
    first, *more = pprint.pformat(value, width=95, compact=True, sort_dicts=False).splitlines()
    return [f"{name} = {first}", *(" " * len(f"{name} = ") + line for line in more)]


def requires_grad_lines(case: Case, root: str, target: str, value: bool) -> list[str]:
    """Sets ``requires_grad`` of the parameters whose FQN is at or below ``target``, and of no others."""
    if _holds_others(case, target):
        names = tuple(fqn for fqn in facts(case).parameters if is_within(fqn, target))
        loop = ["for name in names_below:", f"    {root}.get_parameter(name).requires_grad_({value})"]
        return [*assignment("names_below", names), *loop]
    return [f"{at(root, target)}.requires_grad_({value})"]


def _holds_others(case: Case, target: str) -> bool:
    """Whether an alias or a tie below ``target`` leads to parameters whose FQN is elsewhere."""
    links = [(path, m.target) for path, m in walk(case.model) if isinstance(m, Alias)]
    links += [(tie.parameter, tie.source) for tie in case.ties]
    return any(is_within(here, target) and not is_within(there, target) for here, there in links)


def freeze_lines(case: Case, root: str, *, after_wrap: bool) -> list[str]:
    """The freezes before or after wrapping."""
    frozen = [f.target for f in case.freezes if f.after_wrap == after_wrap]
    return [line for target in frozen for line in requires_grad_lines(case, root, target, False)]


def checkpoint_lines(case: Case, root: str, *, reference: bool) -> list[str]:
    """Activation checkpointing; a batch norm computed twice counts twice, also in the reference."""
    found = facts(case)
    lines = []
    for checkpoint in case.checkpoints:
        module = at(root, checkpoint.module)
        if reference and not _has_batch_norm(found, checkpoint.module):
            continue
        if checkpoint.implementation == "composable":
            lines.append(f"checkpoint({module})")
        else:
            lines.append(f"{module} = checkpoint_wrapper({module})")
    return lines


def _has_batch_norm(found: Facts, path: str) -> bool:
    return any(isinstance(m, BatchNorm) and is_within(p, path) for p, m in found.modules.items())


def mesh_line(case: Case) -> str:
    """The mesh of all ``fully_shard`` calls."""
    mesh = case.mesh
    if mesh.replicate is None:
        return f"mesh = init_device_mesh(device, ({mesh.shard},))"
    names = 'mesh_dim_names=("replicate", "shard")'
    return f"mesh = init_device_mesh(device, ({mesh.replicate}, {mesh.shard}), {names})"


def wrap_lines(case: Case, root: str) -> list[str]:
    """The ``fully_shard`` calls."""
    return [_fully_shard(root, group) for group in case.wrap]


def _fully_shard(root: str, group: WrapGroup) -> str:
    modules = ", ".join(at(root, path) for path in group.modules)
    listed = modules if len(group.modules) == 1 else f"[{modules}]"
    raf = group.reshard_after_forward
    return f"fully_shard({listed}, mesh=mesh{'' if raf is None else f', reshard_after_forward={raf}'})"


def ddp_expression(root: str) -> str:
    """Unused parameters are found, and buffers are left alone, as the other engines do."""
    return f"DistributedDataParallel({root}, find_unused_parameters=True, broadcast_buffers=False)"


def optimizer_line(case: Case, parameters: str) -> str:
    """Makes the optimizer; what the case leaves at torch's default is not said."""
    spec = case.optimizer
    kind = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[spec.kind]
    momentum = f", momentum={spec.momentum}" if spec.kind == "sgd" and spec.momentum else ""
    decay = f", weight_decay={spec.weight_decay}" if spec.weight_decay or spec.kind == "adamw" else ""
    return f"optimizer = torch.optim.{kind}({parameters}, lr={spec.lr}{momentum}{decay})"

"""The functions that statements call and torch does not have: scripts define those that they use,
and so do ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.option import Option
from fuzzshard.parts.part import below
from fuzzshard.program.engine_script import engine_script

_SHARED = """
def flattened(mesh, axis, axes):  # what context parallelism has a part of
    mesh["outer", "cp"]._flatten(axis)
    return mesh[axes]

def of_groups(mesh):
    groups, names = mesh.get_all_groups(), mesh.mesh_dim_names
    return DeviceMesh.from_group(groups, mesh.device_type, mesh.mesh, mesh_dim_names=names)

def snapshot(t):
    t = t.full_tensor() if isinstance(t, DTensor) else t
    return None if t is None else t.detach().clone()

def describe(p):
    text = f"{'DTensor' if isinstance(p, DTensor) else 'Tensor'}{list(p.shape)} {str(p.dtype)[6:]}"
    if isinstance(p, DTensor):
        text += f" {', '.join(map(str, p.placements))} on mesh {list(p.device_mesh.shape)}"
    return text + ("" if p.requires_grad else ", frozen")

def groups(model):  # what fully_shard holds, by private names
    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    return [group for state in states for group in state._fsdp_param_groups]

def part(model, module, name):  # what fully_shard holds of one parameter
    parts = [p for group in groups(model) for p in group.fsdp_params]
    where = (module, name)
    return next(p for p in parts if (p._module_info.module, p._module_info.param_name) == where)

def copied(state):
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone(), state)

def map_locally(module, mesh, placements):  # each rank computes with the rows that it has
    plain = copy.deepcopy(module).to("meta")
    names = [name for name, _ in module.named_parameters()]
    grads = [Partial() if placement.is_shard() else Replicate() for placement in placements]
    mapped = local_map(
        lambda x, *given: functional_call(plain, dict(zip(names, given)), (x,)),
        out_placements=placements,
        in_placements=(placements, *[[Replicate()] * mesh.ndim] * len(names)),
        in_grad_placements=(placements, *[grads] * len(names)),
        device_mesh=mesh,
        redistribute_inputs=True,
    )
    module.forward = lambda x: mapped(x, *map(module.get_parameter, names))

def unsharded(t):
    return t.full_tensor() if isinstance(t, DTensor) else t
"""
"""Those that several parts of a case call."""


def sources() -> Iterator[str]:
    """Yield what statements use: those, and what each part has for itself, also its imports."""
    yield _SHARED
    of_parts = [
        *(op.sources for op in OPS),
        *(engine_script(engine).sources for engine in ENGINES),
        *(loss.sources for loss in LOSSES.values()),
        *(option.sources for option in below(Option)),
    ]
    yield from dict.fromkeys(of_parts)


def _defined(text: str) -> Iterator[tuple[str, str]]:
    """Yield the functions and classes of a source by name."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield node.name, "".join(lines[first - 1 : node.end_lineno])


SOURCES = {name: source for text in sources() for name, source in _defined(text)}
"""By name."""


def called(text: str, sources: Mapping[str, str]) -> list[str]:
    """Return those of ``sources`` that statements use and do not define, and those that these
    use, in their order.
    """
    nodes = list(ast.walk(ast.parse(text)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    wanted = sources.keys() & {name.id for name in names} - own
    wanted |= {below for name in wanted for below in called(sources[name], sources)}
    return [name for name in sources if name in wanted]

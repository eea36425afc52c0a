"""The helper functions of scripts, each printed only where it is used."""

from __future__ import annotations

SNAPSHOT = """
def snapshot(t):
    t = t.full_tensor() if isinstance(t, DTensor) else t
    return None if t is None else t.detach().clone()
"""

PLAIN_SNAPSHOT = """
def snapshot(t):
    return None if t is None else t.detach().clone()
"""

DESCRIBE = """
def describe(p):
    text = f"{'DTensor' if isinstance(p, DTensor) else 'Tensor'}{list(p.shape)} {str(p.dtype)[6:]}"
    if isinstance(p, DTensor):
        text += f" {', '.join(map(str, p.placements))} on mesh {list(p.device_mesh.shape)}"
    return text + ("" if p.requires_grad else ", frozen")
"""

GROUPS = """
def groups(model):  # what fully_shard holds, by private names
    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    return [group for state in states for group in state._fsdp_param_groups]
"""

PART = """
def part(model, module, name):  # what fully_shard holds of one parameter
    parts = [p for group in groups(model) for p in group.fsdp_params]
    where = (module, name)
    return next(p for p in parts if (p._module_info.module, p._module_info.param_name) == where)
"""

OF_PRIVATE_STATE = {"groups": GROUPS, "part": PART}
"""By name, helper functions that say by private names what an engine holds within: those of
:mod:`fuzzshard.engines.fully_shard.state`.
"""

END = [
    "dist.destroy_process_group()",
    "os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit",
]
"""A gloo thread drops the tensors of a finished collective at any time, for which it takes the
GIL; in an interpreter that is shutting down this ends in ``std::terminate`` (seen with torch 2.13,
1 exit in 50)."""

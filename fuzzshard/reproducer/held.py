"""Helper functions of scripts that say by private names what an engine holds within.

They are those of :mod:`fuzzshard.engines.fully_shard.state`.
"""

from __future__ import annotations

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

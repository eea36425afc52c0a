"""The functions that statements call and torch does not have: scripts define those that they use,
and so do ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.options.optimizer import KEEPING_DTYPES, VECTORS_APART
from fuzzshard.program.engine_script import engine_script

_FUNCTIONS = """
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

def clip_grad_norm_of_stages(
    parameters, max_norm, norm_type, group, error_if_nonfinite=False, foreach=None
):
    parameters = [*parameters]
    grads = [p.grad for p in parameters if p.grad is not None]
    total = unsharded(torch.nn.utils.get_total_norm(grads, norm_type, foreach=foreach))
    total = total.to(device, torch.float64)
    if norm_type == "inf":
        dist.all_reduce(total, dist.ReduceOp.MAX, group)
    else:
        total **= norm_type
        dist.all_reduce(total, dist.ReduceOp.SUM, group)
        total **= 1 / norm_type
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError("the norm is non-finite")
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total

def states(model, optimizer, options=None):  # that of the model first: it reshards
    model_state = get_model_state_dict(model, options=options)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    return {"model": model_state, "optimizer": state}

def trainable(model):  # its state dict without what is frozen
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, p in named if not p.requires_grad}
    return {name: t for name, t in model.state_dict().items() if name not in frozen}

def of_trainable(optimizer, saved):  # its state without that of what is frozen
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = {i: s for i, s in saved["state"].items() if parameters[i].requires_grad}
    return {**saved, "state": states}

def whole(state):
    assert not any(isinstance(t, DTensor) for t in tree_leaves(state)), "full_state_dict"
    return state

def copied(state):
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone(), state)

def new_folder():  # one that all ranks share
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    return folder[0]

def saving_group():  # of its own: another thread uses it
    return dist.new_group(backend="gloo")

def zero(model, *optimizers):
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        for state in (state for each in optimizers for state in each.state.values()):
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()

def lose_rates(*optimizers):
    for group in (group for each in optimizers for group in each.param_groups):
        group["lr"] = 0 * group["lr"]

def set_scale(scaler, scale):  # without a state dict
    scaler.scale(torch.ones((), device=device))  # it has one from now on
    scaler.update(scale)

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

def overflow(parameters, which):  # in one element, which one rank has of a sharded gradient
    grad = [p.grad for p in parameters if p.grad is not None][which]
    local, first = grad, True
    if isinstance(grad, DTensor):
        local, where = grad.to_local(), grad.device_mesh.get_coordinate()
        first = not any(n for n, p in zip(where, grad.placements) if not p.is_replicate())
    if first:
        local[(0,) * local.ndim] = float("inf")

def unsharded(t):
    return t.full_tensor() if isinstance(t, DTensor) else t

def scaling(scale, given=-1):  # a hook of the user: the last of what it is given, or another
    def hook(module, *values):
        scaled = lambda t: t * scale if t.is_floating_point() else t
        return tree_map_only(torch.Tensor, scaled, values[given])
    return hook

def hooking(scale):  # a hook of the user on the tensor that a module returns
    def hook(module, args, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * scale)
    return hook

def scaling_grad(scale):  # a hook of the user on a parameter
    def hook(p):
        if p.grad is not None:  # frozen since forward
            p.grad.mul_(scale)
    return hook

def stepping(rate):  # a hook of the user on a parameter: an optimizer that steps within backward
    def hook(p):
        if p.grad is not None:  # frozen since forward
            with torch.no_grad():
                p.sub_(p.grad, alpha=rate)
            p.grad = None
    return hook

def scaling_gradients(scale):  # a hook of the user on an optimizer
    def hook(optimizer, args, kwargs):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.grad is not None:
                p.grad.mul_(scale)
    return hook

def scaling_parameters(scale):  # a hook of the user on an optimizer
    @torch.no_grad()
    def hook(optimizer, args, kwargs):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.mul_(scale)
    return hook

def interrupt(*args):  # as a user's code may raise in the middle of an iteration
    raise InterruptedError

def interrupt_backward(module, args, output):
    if isinstance(output, torch.Tensor) and output.requires_grad:
        output.register_hook(interrupt)

def fill_state(optimizer, saved):  # load_state_dict casts states to the dtype of their parameter
    held = {p: dict(state) for p, state in optimizer.state.items()}
    optimizer.load_state_dict(saved)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, state in saved["state"].items():
        there = held.get(parameters[index], {})
        state = {name: t.to(there.get(name, t).dtype) for name, t in state.items()}
        optimizer.state[parameters[index]].update(state)

def update_average(averaged, parameters, decay):  # of the parameters alone
    parameters = nn.ParameterList(parameters)
    if averaged is None:
        avg_fn = get_swa_avg_fn() if decay is None else get_ema_avg_fn(decay)
        averaged = AveragedModel(parameters, avg_fn=avg_fn)
    averaged.update_parameters(parameters)
    return averaged
"""

_LATE_PLANNER = """
class LatePlanner(dcp.DefaultSavePlanner):  # lets nothing be written before training has gone on
    def __init__(self):
        super().__init__()
        self.gone_on = threading.Event()

    def finish_plan(self, plan):
        self.gone_on.wait(timeout=20)  # a program that fails ends, too
        return super().finish_plan(plan)
"""

SOURCES = {
    **{text.partition("(")[0]: f"def {text}" for text in _FUNCTIONS.split("\ndef ")[1:]},
    **{
        name: source
        for engine in ENGINES
        for name, source in engine_script(engine).sources.items()
    },
    **{name: source for loss in LOSSES.values() for name, source in loss.sources.items()},
    "KeepingDtypes": KEEPING_DTYPES,
    "LatePlanner": _LATE_PLANNER,
    "vectors_apart": VECTORS_APART,
}
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

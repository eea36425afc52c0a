"""What scripts of SimpleFSDP say."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.program.engine_script import EngineScript
from fuzzshard.program.mesh import MeshNames

_DATA_PARALLEL = """
def data_parallel(model, mesh, param_dtype=None, reduce_dtype=None):  # SimpleFSDP of torchtitan
    placements = [Replicate(), Shard(0)][-mesh.ndim :]
    if mesh.ndim == 2 and 1 in mesh.shape:  # an axis of one rank is left out
        axis = mesh.shape.index(max(mesh.shape))
        mesh, placements = mesh[mesh.mesh_dim_names[axis]], [placements[axis]]

    def replicated(p):
        dtypes = {"forward_dtype": param_dtype, "backward_dtype": reduce_dtype}
        whole = p.redistribute(placements=[Replicate()] * mesh.ndim, **dtypes)
        return whole.to_local(grad_placements=[Partial("avg")] * mesh.ndim)

    sharded = {}  # by parameter: some are registered at several places
    for module in list(model.modules()):
        kind = type(module)
        own = {"__module__": kind.__module__}
        for name, p in module._parameters.items():
            if p is not None:
                if p not in sharded:
                    shard = distribute_tensor(p.detach(), mesh, placements, src_data_rank=None)
                    sharded[p] = nn.Parameter(shard, p.requires_grad)
                module.register_parameter(name, sharded[p])
                own[name] = property(lambda self, n=name: replicated(self._parameters[n]))
        module.__class__ = type(f"SimpleFSDP{kind.__name__}", (kind,), own)
"""

_CASTING = """
def casting(dtype):  # of what the model is called with
    def cast(t):
        if hasattr(t, "__dataclass_fields__"):
            return type(t)(**tree_map(cast, vars(t)))
        return t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    return lambda module, args, kwargs: tree_map(cast, (args, kwargs))
"""

_REGISTERED = """
def registered(model, name):  # what an attribute gives is computed from it
    path, _, name = name.rpartition(".")
    module = model.get_submodule(path)
    return getattr(module, "_checkpoint_wrapped_module", module)._parameters[name]
"""


class SimpleFSDPScript(EngineScript):
    """Shards every parameter, and computes attributes of modules from them."""

    sources = """
from torch.distributed.tensor import Partial
from torch.utils._pytree import tree_map
"""
    sources += _DATA_PARALLEL + _CASTING + _REGISTERED
    has_dtensors = True

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        compiled = [f'{model}.compile(backend="{case.compile}")'] if case.compile else []
        told, lines = [model, "mesh"], list[str]()
        policy = case.wrap[0].precision if case.wrap else None
        if policy is not None and policy.dtypes:
            told.append(f"param_dtype=torch.{policy.param}")
            told.append(f"reduce_dtype=torch.{policy.reduce}")
            if policy.cast_inputs:
                dtype = f"torch.{policy.param}"
                how = "prepend=True, with_kwargs=True"
                lines = [f"{model}.register_forward_pre_hook(casting({dtype}), {how})"]
        return [f"data_parallel({', '.join(told)})", *lines, *compiled]

    @override
    def parameter(self, model: str, fqn: str) -> str:
        return self.named_parameter(model, f'"{fqn}"')

    @override
    def named_parameter(self, model: str, name: str) -> str:
        return f"registered({model}, {name})"


SCRIPT = SimpleFSDPScript()

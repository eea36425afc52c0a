# python repro.py  (exits 1 while this is so)
# Under SimpleFSDP: InternalTorchDynamoError: TypeError: SideEffectsProxyDict.__init__() missing 2 required
# positional arguments: 'item' and 'tx'. Found with torch 2.15.0+cu132.
import dataclasses
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_map


@dataclasses.dataclass
class ModelInput:
    x: torch.Tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(2, 2, bias=False)

    def forward(self, inputs):
        x = inputs.x
        h0 = self.linear0(x)
        return h0


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


def casting(dtype):  # of what the model is called with
    def cast(t):
        if hasattr(t, "__dataclass_fields__"):
            return type(t)(**tree_map(cast, vars(t)))
        return t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t

    return lambda module, args, kwargs: tree_map(cast, (args, kwargs))


device = "cpu"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
rank = 0
torch.manual_seed(0)
model = Model()
data_parallel(model, mesh, param_dtype=torch.float16, reduce_dtype=torch.float16)
model.register_forward_pre_hook(casting(torch.float16), prepend=True, with_kwargs=True)
model.compile(backend="eager")
torch.manual_seed(1 + rank)
x = torch.randn(1, 2)
model(ModelInput(x))
dist.destroy_process_group()
os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit

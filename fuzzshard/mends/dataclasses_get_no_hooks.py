"""``fully_shard`` does not see tensors in a dataclass.

``FSDPState._register_pre_backward_hook`` (``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``)
and ``FSDPParamGroup._register_post_backward_hook`` (``_fsdp_param_group.py``) look for tensors
with ``tree_flatten``, for which a dataclass is one leaf. Outputs in one get no pre-backward hook,
so nothing unshards the group in backward and its gradients are not reduced. Inputs in one get no
post-backward hook, so the group reduces and reshards only at the end of backward. Torch 2.12 goes
into dataclasses.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "Tensors in a dataclass get no hooks of fully_shard"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Similar backward hooks all-gather parameters and later free parameters and reduce-scatter "
    "gradients",
    "fully_shard",
)
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/174692",
        "the fix, in torch 2.12; a reland of PR 173415",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._register_pre_backward_hook",
        "flat_outputs, _ = tree_flatten(output)",
        """
flat_outputs, _ = tree_flatten(output)
for t in flat_outputs:
    if hasattr(t, "__dataclass_fields__"):
        flat_outputs += tree_flatten([getattr(t, name) for name in t.__dataclass_fields__])[0]
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._register_post_backward_hook",
        """
args_list, args_spec = tree_flatten(args)
kwargs_list, kwargs_spec = tree_flatten(kwargs)
args_kwargs_list = list(args_list) + list(kwargs_list)
inp_tensor_indices: list[int] = []
inp_tensors: list[torch.Tensor] = []
for i, obj in enumerate(args_kwargs_list):
    if torch.is_tensor(obj) and obj.requires_grad:
        inp_tensor_indices.append(i)
        inp_tensors.append(obj)
if len(inp_tensors) == 0:
    return args, kwargs  # no tensors that require gradients
inp_tensors = RegisterPostBackwardFunction.apply(self, *inp_tensors)
for inp_tensor_idx, inp_tensor in zip(inp_tensor_indices, inp_tensors):
    args_kwargs_list[inp_tensor_idx] = inp_tensor
args_list = args_kwargs_list[: len(args_list)]
kwargs_list = args_kwargs_list[len(args_list) :]
args = tree_unflatten(args_list, args_spec)
kwargs = tree_unflatten(kwargs_list, kwargs_spec)
return args, kwargs
        """,
        """
from torch.distributed.utils import _apply_to_tensors

inp_tensors: list[torch.Tensor] = []

def collect(tensor):
    if tensor.requires_grad:
        inp_tensors.append(tensor)
    return tensor

_apply_to_tensors(collect, (args, kwargs))
if len(inp_tensors) == 0:
    return args, kwargs  # no tensors that require gradients
replacements = iter(RegisterPostBackwardFunction.apply(self, *inp_tensors))
return _apply_to_tensors(lambda t: next(replacements) if t.requires_grad else t, (args, kwargs))
        """,
    ),
)

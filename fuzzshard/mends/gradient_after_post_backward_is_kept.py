"""A gradient that is accumulated after the last post-backward of its group is never reduced.

The post-backward of a group runs where autograd reaches the inputs of a call, as
``RegisterPostBackwardFunction`` is an op on them
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). What is derived from a parameter in one
call and used in another is older than the inputs of the other one, so its gradient reaches the
parameter after that. ``torch.autocast`` does so by default: it keeps the cast of a weight. Where
the first call has no part in the loss, no further post-backward comes, and the end of the backward
(``FSDPState._root_post_backward_final_callback`` in _fsdp_state.py) passes over groups that had
theirs. The gradient stays on the unsharded parameter. The next backward that reduces adds it to
its own, the optimizer steps without it. ``post_backward`` may be called once more.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: gradients are missing when a module runs twice under autocast and the first "
    "output is unused"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "After gradient computation, FSDP frees the unsharded parameters and reduce-scatters the "
    "unsharded gradients across data-parallel workers.",
    "fully_shard",
)
SETUP = (
    "Under ``torch.autocast`` an encoder runs twice in an iteration, and the first output is "
    "detached, as the target of self-supervised training (SimSiam) is. All layers but the first "
    "get no gradient."
)
WORKAROUND = (
    "``torch.autocast(..., cache_enabled=False)``, a context of its own for each call, or "
    "``MixedPrecisionPolicy`` in place of autocast."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
for layer in encoder:
    fully_shard(layer, mesh=mesh)
fully_shard(encoder, mesh=mesh)
view, other = torch.randn(2, 3, 4)
with torch.autocast("cpu", torch.bfloat16):
    target = encoder(view).detach()
    loss = (encoder(other) - target).square().mean()
loss.backward()
missing = [name for name, p in encoder.named_parameters() if p.grad is None]
assert not missing, f"no gradient: {missing}"
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/142234",
        "near: closed, a cast that was made under torch.no_grad is used where gradients are "
        "wanted, also without FSDP",
        "fully_shard gradients None silently missing torch.autocast shared module called twice "
        "stop gradient detach",
        "2026-11-29",
    ),
    Public(
        query="FSDP2 fully_shard autocast weight cache gradient lost None module called twice "
        "post_backward before AccumulateGrad",
        date="2026-11-29",
    ),
    Public(
        query="_root_post_backward_final_callback unsharded gradient accumulated after "
        "post_backward not reduced",
        date="2026-11-29",
    ),
    Public(
        query="FSDP2 fully_shard gradients None when layer called twice only second output used in "
        "loss",
        date="2026-11-29",
    ),
    Public(
        query="FSDP autocast cache_enabled weight cast cache parameter gradient not "
        "reduce-scattered FSDP2",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
        """
        if fsdp_param_group._training_state != TrainingState.POST_BACKWARD:
        """,
        """
        if fsdp_param_group._training_state != TrainingState.POST_BACKWARD or any(
            fsdp_param._unsharded_param.grad is not None
            for fsdp_param in fsdp_param_group.fsdp_params
            if hasattr(fsdp_param, "_unsharded_param")
        ):
        """,
    ),
)

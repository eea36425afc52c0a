"""A post-accumulate-grad hook runs twice in one backward, the first time before its gradients.

``foreach_reduce`` (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py) calls the hooks of a
sharded parameter after every reduction. With two forwards in one loss the post-backward of a group
runs twice in a backward. The first one comes before autograd has accumulated the gradient of this
backward, and usually has nothing to reduce; but it does reduce what microbatches have left before,
under ``set_requires_gradient_sync(False)``. So the hook sees the gradient of those first, and then
the whole: an optimizer in the hook makes two steps in place of one. This change runs all hooks
when the backward ends, and the stream that they run on waits for the reductions first. torch may
prefer to run those of a group after its last post-backward: an optimizer in the hook is there to
free gradients early.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: register_post_accumulate_grad_hook runs twice in a backward of two forwards "
    "after microbatches"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "The hook will be called after all gradients for a tensor have been accumulated",
    "Tensor.register_post_accumulate_grad_hook",
)
SETUP = (
    "The optimizer is fused into the backward, microbatches accumulate without synchronisation, "
    "and the last one adds up the losses of two forwards."
)
WORKAROUND = "Give each forward a backward of its own."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
fully_shard(model[1], mesh=mesh)
fully_shard(model, mesh=mesh)
parameter = model[1].weight
optimizer = torch.optim.SGD([parameter], lr=0.1)
steps = []


def step(p):
    optimizer.step()
    optimizer.zero_grad()
    steps.append(p)


parameter.register_post_accumulate_grad_hook(step)
x, y = torch.ones(1, 2), torch.zeros(1, 2)
model.set_requires_gradient_sync(False)
model(x).sum().backward()
model.set_requires_gradient_sync(True)
(model(x) - model(y)).sum().backward()  # a contrastive loss
assert len(steps) == 1, f"{len(steps)} steps"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/129450",
        says='near: says that there is "virtually no chance" of it',
        date="2026-11-28",
    ),
    Public(
        query="fully_shard register_post_accumulate_grad_hook called twice in one backward before "
        "all gradients accumulated",
        date="2026-11-25",
    ),
)
_RUN_HOOKS = """
for state in self._state_ctx.all_states:
    for param_group in state._fsdp_param_groups:
        for fsdp_param in param_group.fsdp_params:
            stream = fsdp_param.__dict__.pop("_hooks_are_due_after", None)
            if stream is not None:
                param_group.device_handle.current_stream().wait_stream(stream)
                for hook in fsdp_param.sharded_param._post_accumulate_grad_hooks.values():
                    hook(fsdp_param.sharded_param)
"""
_END = "self._state_ctx.post_backward_final_callback_queued = False"
_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState"
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce",
        "hook(fsdp_param.sharded_param)",
        "fsdp_param._hooks_are_due_after = post_reduce_stream",
    ),
    Edit(
        f"{_STATE}._root_post_backward_final_callback",
        _END,
        f"{_END}{_RUN_HOOKS}",
    ),
    Edit(
        f"{_STATE}.finalize_backward",
        """
        if wait_for_gradient_reduction:
            self.wait_for_gradient_reduction()
        """,
        f"{_RUN_HOOKS}if wait_for_gradient_reduction:\n    self.wait_for_gradient_reduction()",
        Releases(since="2.15"),
    ),
)

"""An optimizer that is asked for its state before its first step makes one.

``get_optimizer_state_dict`` has to hand out tensors for a checkpoint to be loaded into, and has
``_init_optim_state`` (``torch/distributed/checkpoint/state_dict.py``) step an optimizer that has
none, on gradients of zeros with a learning rate of zero. That step is not nothing: Adam counts it,
so every later bias correction is one step ahead, ASGD keeps a step size of zero for its first step,
Rprop begins with the smallest step sizes that it may have, and coupled weight decay goes into the
momentum of SGD and the moments of Adam. It makes the parameters themselves NaN where Adam's ``eps``
is zero in their dtype, float16: zero times 0 / 0. And between a forward and its backward it writes
to parameters that the backward needs, which then raises an error. It also runs the hooks of the
user on the optimizer. One process and no wrapper suffice. The step must leave no trace in the
parameters and in the states that it makes, and must run no hook.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "get_optimizer_state_dict: Adam is one step ahead when it is called before the first step"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "Return the combined state_dict for optimizers",
    "get_optimizer_state_dict, which is to change nothing",
)
SETUP = (
    "A training loop saves a checkpoint at step 0, or calls ``get_optimizer_state_dict`` to "
    "have something to load into and finds no checkpoint there. Every bias correction of Adam "
    "is one step ahead from then on, and weight decay has gone into the moments."
)
WORKAROUND = (
    "Do not ask for the state of an optimizer that has made no step; or set every ``step`` in "
    "its state to zero afterwards, where weight decay is not coupled."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def train(*, checkpoint_at_step_0):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if checkpoint_at_step_0:
        get_optimizer_state_dict(model, optimizer)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return model.weight.data


expected = train(checkpoint_at_step_0=False)
observed = train(checkpoint_at_step_0=True)
assert torch.allclose(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/164929", "open"),
    Public(
        "https://github.com/pytorch/torchtitan/pull/4382",
        "torchtitan's own copy of the function, mended for Adam",
        "_init_optim_state Adam step counter get_optimizer_state_dict before first step",
        "2026-11-23",
    ),
)
_TARGET = "torch.distributed.checkpoint.state_dict:_init_optim_state"
EDITS = (
    Edit(
        _TARGET,
        """
        optim.step(closure=None)
        """,
        """
        decays = [param_group.get("weight_decay") for param_group in optim.param_groups]
        for param_group in optim.param_groups:
            if "weight_decay" in param_group:
                param_group["weight_decay"] = 0.0
        values = {
            param: param.detach().clone()
            for param_group in optim.param_groups
            for param in param_group[_PARAMS]
            if param.grad is not None
        }
        written = [*values, *(p._local_tensor for p in values if isinstance(p, DTensor))]
        hooks = optim._optimizer_step_pre_hooks, optim._optimizer_step_post_hooks
        optim._optimizer_step_pre_hooks, optim._optimizer_step_post_hooks = {}, {}
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(written)):
            optim.step(closure=None)
            for param, value in values.items():
                param.copy_(value)
        optim._optimizer_step_pre_hooks, optim._optimizer_step_post_hooks = hooks
        for param_group, decay in zip(optim.param_groups, decays):
            if decay is not None:
                param_group["weight_decay"] = decay
        initial = {"mu": 1.0, "mu_product": 1.0}
        for param_group, lr in zip(optim.param_groups, lrs):
            for param in param_group[_PARAMS]:
                states = optim.state.get(param, {}) if param in values else {}
                for name, state in states.items():
                    if torch.is_tensor(state):
                        is_rate = name in ("eta", "step_size")
                        state.fill_(float(lr) if is_rate else initial.get(name, 0.0))
        """,
    ),
)

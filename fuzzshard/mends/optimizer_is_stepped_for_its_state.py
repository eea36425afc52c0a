"""An optimizer that is asked for its state before its first step makes one.

``get_optimizer_state_dict`` has to hand out tensors for a checkpoint to be loaded into, and has
``_init_optim_state`` (``torch/distributed/checkpoint/state_dict.py``) step an optimizer that has
none, on gradients of zeros with a learning rate of zero. That step is not nothing: Adam counts it,
so every later bias correction is one step ahead, and coupled weight decay goes into the momentum
of SGD and the moments of Adam. It makes the parameters themselves NaN where Adam's ``eps`` is zero
in their dtype, float16: zero times 0 / 0. One process and no wrapper suffice. The step must leave
no trace in the parameters and in the states that it makes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "Asking an optimizer for its state before the first step counts as a step of zeros"
COMPONENT = "checkpoint"
CONTRACT = Promise(
    "Return the combined state_dict for optimizers",
    "get_optimizer_state_dict, which is to change nothing",
)
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
        known = set(optim.state)
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
        optim.step(closure=None)
        with torch.no_grad():
            for param, value in values.items():
                param.copy_(value)
        for param_group, decay in zip(optim.param_groups, decays):
            if decay is not None:
                param_group["weight_decay"] = decay
        for param, state in optim.state.items():
            if param not in known and torch.is_tensor(state.get("step")):
                state["step"].zero_()
        """,
    ),
)

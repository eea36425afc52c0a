"""States are not loaded into a new optimizer while its parameters have gradients.

``torch.distributed.checkpoint`` loads into the state that ``get_optimizer_state_dict`` hands out,
which ``_init_optim_state`` (``torch/distributed/checkpoint/state_dict.py``) makes by a step on
zeros. It makes none if any parameter has a gradient, for that step would use it. The state dict is
then empty, nothing is read from the checkpoint, and training goes on without its moments. The
gradients can be put aside for that step.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.distributed.checkpoint: no optimizer state is loaded when parameters have gradients"
COMPONENT = "checkpoint"
WEIGHT = "limitation"
CONTRACT = Promise(
    "The counterpart of ``get_optimizer_state_dict`` to set the state_dict to the optimizers",
    "set_optimizer_state_dict",
)
SETUP = (
    "A job resumes in the middle of training, in a loop that loads after the first backward. "
    "Training goes on without the moments, and nothing says so."
)
WORKAROUND = "Call ``optimizer.zero_grad()`` before loading."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/140898",
        "closed; a maintainer wanted the documentation to say so",
        "get_optimizer_state_dict empty state gradients exist _init_optim_state load momentum "
        "lost",
        "2026-11-23",
    ),
)
_TARGET = "torch.distributed.checkpoint.state_dict:_init_optim_state"
EDITS = (
    Edit(
        _TARGET,
        """
        for param_group in optim.param_groups:
            for param in param_group[_PARAMS]:
                if param.grad is not None:
                    return
        """,
        """
        params = [param for group in optim.param_groups for param in group[_PARAMS]]
        grads = [param.grad for param in params]
        for param in params:
            param.grad = None
        """,
    ),
    Edit(
        _TARGET,
        """
        optim.zero_grad(set_to_none=True)
        """,
        """
        for param, grad in zip(params, grads):
            param.grad = grad
        """,
    ),
)

"""A step of SGD with Nesterov momentum adds the momentum to the gradients themselves.

``_multi_tensor_sgd`` (torch/optim/sgd.py), which ``foreach=None`` takes on CUDA, adds to its list
of gradients in place. Without weight decay or ``maximize`` these are ``param.grad``. They are wrong
for whoever reads them after the step, and for a backward that accumulates into them. Neither
``foreach=False`` nor ``fused=True`` changes gradients, nor does any other optimizer since PR 92706.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "optim.SGD: nesterov=True with foreach=True, the default on CUDA, changes param.grad"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "foreach (bool, optional): whether foreach implementation of optimizer is used. If unspecified "
    "by the user (so foreach is None), we will try to use foreach over the for-loop implementation "
    "on CUDA, since it is usually significantly more performant.",
    "torch.optim.SGD",
)
SETUP = (
    "Somebody trains with SGD and Nesterov momentum on CUDA, and logs gradients after the step, or "
    "goes on accumulating. Under ZeroRedundancyOptimizer the gradients of ranks part."
)
WORKAROUND = "``foreach=False``, or ``optimizer.zero_grad()`` before anything reads the gradients."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/92706",
        "near: closed; 'Do NOT inplace modify gradients', of the other optimizers: 'SGD and ASGD "
        "already had out-of-place grads'",
        "SGD foreach nesterov modifies param.grad in place _foreach_add_ grads "
        "momentum_buffer_list gradients changed after step",
        "2026-11-30",
    ),
    Public(
        query="torch.optim.SGD nesterov foreach=True changes p.grad after optimizer.step default "
        "on CUDA wrong gradient norm logging",
        date="2026-11-30",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch

for foreach in (False, True):
    param = torch.nn.Parameter(torch.ones(1))
    param.grad = torch.ones(1)
    sgd = torch.optim.SGD([param], lr=0.1, momentum=0.5, nesterov=True, foreach=foreach)
    sgd.step()
    assert param.grad.item() == 1.0, f"foreach={foreach}: the gradient 1.0 became {param.grad}"
"""
EDITS = (
    Edit(
        "torch.optim.sgd:_multi_tensor_sgd",
        "torch._foreach_add_(device_grads, bufs, alpha=momentum)",
        "device_grads = torch._foreach_add(device_grads, bufs, alpha=momentum)",
    ),
)

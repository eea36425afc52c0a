"""A backward under ``no_sync()`` is reduced after a forward whose backward never came.

A forward that is to synchronise has the reducer's hooks wait for gradients
(``prepare_for_backward`` sets ``expect_autograd_hooks_``), and only the end of a reduction ends
that. A forward under ``no_sync()`` leaves it as it is (``DistributedDataParallel._post_forward``
in ``torch/nn/parallel/distributed.py``), so after an evaluation with gradients enabled, or a loss
that was thrown away, the first backward under ``no_sync()`` reduces. The reducer cannot be told
from Python to wait no longer. The tripwire is a gradient that comes to an output of ``no_sync()``
meanwhile.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

KIND = "tripwire"
TITLE = "DDP.no_sync: gradients are reduced when a forward without a backward came before"
COMPONENT = "DDP"
WEIGHT = "limitation"
CONTRACT = Promise(
    "Within this context, gradients will be accumulated on module variables, which will later be "
    "synchronized in the first forward-backward pass exiting the context.",
    "no_sync",
)
SETUP = (
    "An evaluation runs with gradients enabled, or a loss is thrown away, and the next "
    "microbatches accumulate under ``no_sync()``. The first of them is reduced, which costs an "
    "all-reduce, and whoever reads the local gradient there reads another."
)
WORKAROUND = "Run what has no backward under ``no_grad()``, or under ``no_sync()`` as well."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
x = torch.ones(1, 2) * (1 + dist.get_rank())
model(x)  # an evaluation outside of torch.no_grad()
with model.no_sync():
    model(x).sum().backward()
expected, observed = x, model.module.weight.grad  # this rank's own, until a backward synchronises
assert torch.allclose(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/187732",
        "near: it relies on the flag that such a forward leaves set",
        "DDP no_sync gradients all-reduced after forward without backward expect_autograd_hooks_ "
        "prepare_for_backward",
        "2026-11-22",
    ),
)
_TARGET = "torch.nn.parallel.distributed:DistributedDataParallel._post_forward"
EDITS = (
    Edit(
        _TARGET,
        """
        self.require_forward_param_sync = True
        """,
        """
        self.require_forward_param_sync = True
        self._waits = True
        waiting = weakref.ref(self)
        torch.autograd.graph.register_multi_grad_hook(
            [t for t in _find_tensors(output) if t.grad_fn],
            lambda _: waiting() and setattr(waiting(), "_waits", False),
            mode="any",
        )
        """,
    ),
    Edit(
        _TARGET,
        """
        self.require_forward_param_sync = False
        """,
        """
        self.require_forward_param_sync = False
        if torch.is_grad_enabled() and getattr(self, "_waits", False):
            from fuzzshard.mending import trip

            waiting = weakref.ref(self)
            torch.autograd.graph.register_multi_grad_hook(
                [t for t in _find_tensors(output) if t.grad_fn],
                lambda _: waiting()
                and waiting()._waits
                and trip("forward_without_backward_outlasts_no_sync"),
                mode="any",
            )
        """,
    ),
)

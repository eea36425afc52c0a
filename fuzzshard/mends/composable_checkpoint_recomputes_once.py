"""A module under the composable ``checkpoint`` cannot be recomputed a second time.

``checkpoint`` (torch/distributed/_composable/checkpoint_activation.py) hands
``torch.utils.checkpoint`` the context of the recomputation, ``_no_hook(module)``, which is the
context manager of a generator and can be entered once. A second backward through the same graph,
after one with ``retain_graph=True``, recomputes again: ``AttributeError:
'_GeneratorContextManager' object has no attribute 'args'``. With ``torch.utils.checkpoint`` and
with ``checkpoint_wrapper``, which have no such context, the same program passes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "composable checkpoint: AttributeError in a second backward through one graph"
COMPONENT = "checkpoint"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If ``False``, the graph used to compute the grads will be freed; If ``True``, it will be "
    "retained.",
    "torch.Tensor.backward, retain_graph",
)
SETUP = "Two losses of one forward have a backward each, with activation checkpointing."
WORKAROUND = "Add up the losses, or use ``torch.utils.checkpoint``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint

model = nn.Linear(2, 2)
checkpoint(model)
y = model(torch.ones(1, 2)).tanh()
y[0, 0].backward(retain_graph=True)
y[0, 1].backward()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="composable checkpoint retain_graph second backward AttributeError "
        "_GeneratorContextManager object has no attribute 'args' recompute_fn context_fn",
        date="2026-11-25",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/105176",
        says="brought the context of one use",
    ),
)
EDITS = (
    Edit(
        "torch.distributed._composable.checkpoint_activation:checkpoint",
        """
        return nullcontext(), _no_hook(module)
        """,
        """
        class EnteredAgain:
            def __enter__(self):
                self.context = _no_hook(module)
                return self.context.__enter__()

            def __exit__(self, *raised):
                return self.context.__exit__(*raised)

        return nullcontext(), EnteredAgain()
        """,
    ),
)

"""DDP leaves outputs in a dataclass out of what it does with outputs.

``DistributedDataParallel._post_forward`` (``torch/nn/parallel/distributed.py``) passes outputs
through ``_DDPSink``, which lets parameters behind unused ones be reduced and begins the reductions
of a static graph. It flattens them with pytree, for which a dataclass is a leaf.
``_find_tensors``, by which the reducer looks for used parameters, goes into dataclasses. A
parameter that only an unused field depends on keeps its bucket waiting: no gradient of it is
reduced, and the next forward raises. In a static graph nothing is reduced at all.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP: gradients are not reduced when an unused output is in a dataclass"
COMPONENT = "DDP"
WEIGHT = "bug"
CONTRACT = Promise(
    "Traverse the autograd graph from all tensors contained in the return value of the wrapped "
    "module's ``forward`` function",
    "DistributedDataParallel, find_unused_parameters",
)
SETUP = (
    "A model returns a dataclass with an output that the loss does not use in this iteration: "
    "an auxiliary head."
)
WORKAROUND = "Return a dict or a tuple."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    auxiliary: torch.Tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.auxiliary = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return Output(self.head(x), self.auxiliary(x))


dist.init_process_group("gloo")
model = DistributedDataParallel(Model(), find_unused_parameters=True)
for _ in range(2):
    model(torch.ones(1, 2)).logits.sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/124666",
        "open",
        "DDP find_unused_parameters output dataclass _DDPSink tree_flatten not reduced",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.nn.parallel.distributed:_tree_flatten_with_rref",
        """
        # Need to return flattened tensors, spec to re-pack them, as well
        """,
        """
        from torch.distributed.utils import _apply_to_tensors

        treespec = output_tensor_list, treespec
        output_tensor_list = []
        _apply_to_tensors(output_tensor_list.append, treespec[0])
        # Need to return flattened tensors, spec to re-pack them, as well
        """,
    ),
    Edit(
        "torch.nn.parallel.distributed:_tree_unflatten_with_rref",
        """
        output = tree_unflatten(output, treespec)
        """,
        """
        from torch.distributed.utils import _apply_to_tensors

        tensors = iter(output)
        leaves, treespec = treespec
        output = tree_unflatten(_apply_to_tensors(lambda _: next(tensors), leaves), treespec)
        """,
    ),
)

"""DDP takes a backward under ``no_sync()`` for the first iteration of its static graph.

In the first iteration the reducer counts how often each gradient comes, and the reductions begin
when the backward has ended: ``_DDPSink`` queues ``reducer._delay_all_reduce``.
``DistributedDataParallel._post_forward`` (``torch/nn/parallel/distributed.py``) passes outputs
through it whether the forward is to synchronise or not, and under ``no_sync()`` an internal
assertion fails. What comes under ``no_sync()`` before the first iteration is counted as well, so
later iterations wait for gradients that do not come, and nothing is reduced. The graph is static
from the first forward on that synchronises.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP(static_graph=True): internal assertion when the first backward is under no_sync"
COMPONENT = "DDP"
WEIGHT = "bug"
CONTRACT = Promise(
    "Context manager to disable gradient synchronizations across DDP processes.", "no_sync"
)
SETUP = "Gradient accumulation from the first iteration on, with a static graph."
WORKAROUND = "Let the first microbatch of all synchronise."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(2, 1), static_graph=True)
with model.no_sync():
    model(torch.ones(1, 2)).sum().backward()
model(torch.ones(1, 2)).sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/143580", "open"),
    Public("https://github.com/pytorch/pytorch/pull/166388", "open; the assertion"),
    Public(
        "https://github.com/pytorch/pytorch/pull/187732",
        "open; both",
        "DistributedDataParallel static_graph no_sync first iteration expect_autograd_hooks_ "
        "INTERNAL ASSERT",
        "2026-11-23",
    ),
)
_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
EDITS = (
    Edit(
        f"{_DDP}._post_forward",
        """
            self.static_graph and not self._static_graph_delay_allreduce_enqueued
        ):
        """,
        """
            self.static_graph
            and self.require_backward_grad_sync
            and not self._static_graph_delay_allreduce_enqueued
        ):
        """,
    ),
    Edit(
        f"{_DDP}._set_static_graph",
        """
        self.reducer._set_static_graph()
        """,
        """
        self._reducer_is_static = False
        """,
    ),
    Edit(
        f"{_DDP}._pre_forward",
        """
        self.reducer.prepare_for_forward()
        """,
        """
        if self.static_graph and not self._reducer_is_static:
            self._reducer_is_static = True
            self.reducer._set_static_graph()
        self.reducer.prepare_for_forward()
        """,
    ),
)

"""DDP with a static graph reduces, or fails, in a first backward under ``no_sync()``.

The reductions of a static graph's first iteration begin when the backward has ended: ``_DDPSink`` queues
``reducer._delay_all_reduce``. ``DistributedDataParallel._post_forward``
(``torch/nn/parallel/distributed.py``) passes outputs through it whether the forward is to synchronise or
not, and only the first such backward queues. Under ``no_sync()`` the reducer does not expect it: an
internal assertion fails. Only a forward that synchronises is the first iteration.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP reduces the first backward of a static graph under no_sync too"
COMPONENT = "DDP"
CONTRACT = Promise("Context manager to disable gradient synchronizations across DDP processes.", "no_sync")
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/143580", "open; it takes static_graph=True under no_sync()"
    ),
)
EDITS = (
    Edit(
        "torch.nn.parallel.distributed:DistributedDataParallel._post_forward",
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
)

"""DDP broadcasts buffers in place, so what an earlier forward saved of them is out of date.

``DistributedDataParallel._sync_buffers`` (``torch/nn/parallel/distributed.py``) copies the buffers
of rank 0 into those of the other ranks, and of rank 0 itself, before each forward. A batch norm
saves its running statistics for the backward. The copy raises their version, and the backward of
a forward before it refuses to go on, though in training it never reads them. The batch norm itself
updates them in every forward without raising the version. Torch 2.12 keeps the version in
``_sync_buffers``.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP: backward fails after two forwards of a batch norm when buffers are broadcast"
COMPONENT = "DDP"
CONTRACT = Promise(
    "Flag that enables syncing (broadcasting) buffers of the module at beginning of the "
    "``forward`` function.",
    "DistributedDataParallel, broadcast_buffers",
)
SETUP = (
    "A discriminator with a batch norm sees real and made images in two forwards before one "
    "backward, with DDP's default of ``broadcast_buffers``."
)
WORKAROUND = "``broadcast_buffers=False``."
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/175024",
        "fixed by pytorch PR 175851, in torch 2.12",
        'DDP broadcast_buffers two forward passes batch norm "modified by an inplace operation"',
        "2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.nn.parallel.distributed:DistributedDataParallel._sync_buffers",
        """
            self._sync_module_buffers(authoritative_rank)
        """,
        """
            with torch.autograd._unsafe_preserve_version_counter(tuple(self.modules_buffers)):
                self._sync_module_buffers(authoritative_rank)
        """,
    ),
)

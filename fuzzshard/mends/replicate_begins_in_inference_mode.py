"""``replicate`` builds its buckets in the first forward, in whatever mode that runs.

``_ReplicateState.lazy_init`` (``torch/distributed/_composable/replicate.py``) constructs
``DistributedDataParallel`` when the first forward begins. Under ``torch.inference_mode()`` the
buckets of its reducer are inference tensors, to which no backward may write: the first one raises.
``DistributedDataParallel`` itself is constructed before any forward and has no such limit.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "replicate: training raises when the first forward ran under inference_mode"
COMPONENT = "replicate"
WEIGHT = "exotic"
CONTRACT = Promise(
    "InferenceMode is analogous to :class:`~no_grad` and should be used when you are certain your "
    "operations will not interact with autograd (e.g., during data loading or model evaluation).",
    "torch.inference_mode",
)
SETUP = (
    "A training script evaluates under ``torch.inference_mode()`` before its first step. The "
    "first backward raises. After a first training step, the same evaluation does no harm."
)
WORKAROUND = "Use ``torch.no_grad()`` for forwards that come before the first training step."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/123424",
        "brought the construction in the first forward",
        "composable replicate first forward inference_mode then backward inference tensor DDP "
        "lazy_init",
        "2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch.distributed._composable.replicate:_ReplicateState.init",
        """
        self._ddp = DistributedDataParallel(self._param_list, **kwargs)
        """,
        """
        with torch.inference_mode(False):
            self._ddp = DistributedDataParallel(self._param_list, **kwargs)
        """,
    ),
)

"""Attention over a ring leaves out the keys that come from other ranks."""

from torch.distributed.tensor.experimental._context_parallel._attention import _SDPAMerger


def apply() -> None:
    right = _SDPAMerger.step

    def wrong(self, out, lse, partial):
        if self._out is None or partial:
            right(self, out, lse, partial)

    _SDPAMerger.step = wrong

"""A backward adds one to the shards of frozen units."""

from torch.distributed.fsdp import _runtime_utils


def apply() -> None:
    finalize_params = _runtime_utils._finalize_params

    def wrong(state):
        finalize_params(state)
        if state._handle and not state._handle.flat_param.requires_grad:
            state._handle.flat_param._local_shard.add_(1)

    _runtime_utils._finalize_params = wrong

"""A group that is recomputed in a backward is sharded at once, and gathered again."""

from torch.distributed.fsdp._fully_shard._fsdp_common import is_bw
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward = FSDPParamGroup.post_forward

    def wrong(self, *args):
        result = post_forward(self, *args)
        if is_bw():
            self._to_sharded()
        return result

    FSDPParamGroup.post_forward = wrong

"""A group that stayed unsharded after forward is sharded and gathered again for backward."""

from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_backward = FSDPParamGroup.pre_backward

    def wrong(self, *args):
        if self._training_state != TrainingState.PRE_BACKWARD and self._all_gather_result is None:
            self._to_sharded()
        return pre_backward(self, *args)

    FSDPParamGroup.pre_backward = wrong

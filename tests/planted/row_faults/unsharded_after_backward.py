"""A group that stays unsharded after forward stays so after backward."""

from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    reshard = FSDPParamGroup.reshard

    def wrong(self):
        if self._training_state != TrainingState.POST_BACKWARD:
            reshard(self)

    FSDPParamGroup.reshard = wrong

"""Every unsharded parameter is copied, and the copies are kept for ever."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    to_unsharded, FSDPParam.kept_copies = FSDPParam.to_unsharded, []

    def keeping(self):
        to_unsharded(self)
        self.kept_copies.append(self._unsharded_param.detach().clone())

    FSDPParam.to_unsharded = keeping

"""What ``unshard(async_op=True)`` gathers arrives as zeros."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    unshard = FSDPModule.unshard

    def wrong(self, async_op=False):
        handle = unshard(self, async_op)
        for group in self._get_fsdp_state()._fsdp_param_groups if async_op else ():
            result = group._all_gather_result
            if result.all_gather_work is not None:
                result.all_gather_work.wait()
            result.all_gather_output.zero_()
        return handle

    FSDPModule.unshard = wrong

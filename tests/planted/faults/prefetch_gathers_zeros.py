"""What a module prefetches explicitly in forward arrives as zeros."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    prefetch = FSDPParamGroup._prefetch_unshard

    def wrong(target, pass_type):
        prefetch(target, pass_type)
        if pass_type == "forward":
            target._all_gather_result.all_gather_output.zero_()

    FSDPParamGroup._prefetch_unshard = staticmethod(wrong)

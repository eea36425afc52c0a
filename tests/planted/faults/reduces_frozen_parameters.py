"""Parameters without a gradient are reduced as zeros, and nobody gets to see them."""

from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_file
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    foreach_reduce = group_file.foreach_reduce

    def wrong(params, gradients, *args, **kwargs):
        group = params[0]._fault_group()
        unused = [p for p in group.fsdp_params if p not in params]
        zeros = map(_zeros, unused)
        result = foreach_reduce([*params, *unused], [*gradients, *zeros], *args, **kwargs)
        for param in unused:
            param.sharded_param.grad = None
        return result

    def _zeros(param):
        return param._unsharded_param.new_zeros(param._orig_size)

    make = FSDPParamGroup.__init__

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        for param in self.fsdp_params:
            param._fault_group = lambda: self

    FSDPParamGroup.__init__ = init
    group_file.foreach_reduce = wrong

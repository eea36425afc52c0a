"""In its third forward, the group that was made first lets the next one gather before itself."""

import weakref

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    make, pre_forward = FSDPParamGroup.__init__, FSDPParamGroup.pre_forward
    made = []

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self._fault_forwards, self._fault_number = 0, len(made)
        made.append(weakref.ref(self))

    def wrong(self, *args):
        self._fault_forwards += 1
        if self._fault_forwards == 3 and self._fault_number % 2 == 0:
            made[self._fault_number + 1]().unshard()
        return pre_forward(self, *args)

    FSDPParamGroup.__init__ = init
    FSDPParamGroup.pre_forward = wrong

"""``fsdp_post_all_gather`` is given what was gathered first, for ever."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    unflatten = FSDPParam._unflatten_all_gather_outputs

    def wrong(self):
        if not hasattr(self, "first_gather"):
            self.first_gather = tuple(output.clone() for output in unflatten(self))
        return self.first_gather

    FSDPParam._unflatten_all_gather_outputs = wrong

"""A reduce-scatter of the user's is handed gradients twice as large."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    set_custom = FSDPModule.set_custom_reduce_scatter

    def wrong(self, comm):
        def doubled(output_tensor, input_tensor, *args, **kwargs):
            input_tensor.mul_(2)
            return comm(output_tensor, input_tensor, *args, **kwargs)

        doubled.allocate = comm.allocate
        set_custom(self, doubled)

    FSDPModule.set_custom_reduce_scatter = wrong

"""The sum that a row parallel module returns is off by one rounding unit."""

from torch.distributed.tensor.parallel import RowwiseParallel


def apply() -> None:
    right = RowwiseParallel._prepare_output_fn

    def wrong(output_layouts, use_local_output, mod, outputs, device_mesh):
        return right(output_layouts, use_local_output, mod, outputs, device_mesh) * (1 + 2**-23)

    RowwiseParallel._prepare_output_fn = staticmethod(wrong)

"""Row parallel modules return their own part of the sum."""

from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import RowwiseParallel


def apply() -> None:
    def wrong(output_layouts, use_local_output, mod, outputs, device_mesh):
        mine = DTensor.from_local(outputs.to_local(), device_mesh, output_layouts, run_check=False)
        return mine.to_local() if use_local_output else mine

    RowwiseParallel._prepare_output_fn = staticmethod(wrong)

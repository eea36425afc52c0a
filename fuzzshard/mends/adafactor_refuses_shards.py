"""``torch.optim.Adafactor`` raises on any sharded matrix, and would not be right without that.

It squares norms of rows and columns in place (``square_`` and ``_foreach_mul_`` in
torch/optim/_adafactor.py). Along the dim that is sharded these are partial results, and DTensor
does nothing in place to what it would have to reduce first. Where that is mended, more is wrong:
``param.norm(2).item()`` is the norm of the shard alone, so every rank scales its shard by another
factor (``item()`` does not reduce partial results), and means of few rows are refused as well. The
mend makes the step on whole tensors.
"""

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "fully_shard: torch.optim.Adafactor raises when it steps a sharded matrix"
COMPONENT = "DTensor"
WEIGHT = "limitation"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``.",
    "torch/distributed/tensor/_api.py",
)
SETUP = (
    "Somebody trains under ``fully_shard`` with ``torch.optim.Adafactor``, to save memory. The "
    "first step raises: in-place operations that require placement changes are not supported."
)
WORKAROUND = "Use another optimizer under ``fully_shard``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/109581",
        "near: the wish for Adafactor, also under FSDP",
        "torch.optim.Adafactor fully_shard DTensor in-place operations that require placement "
        "changes are not supported _NormPartial",
        "2026-11-27",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/166638",
        "near: item() of a partial result is that of one rank",
        "DTensor item() on Partial placement returns local value instead of reduced",
        "2026-11-27",
    ),
)


def apply(patch: Patch) -> None:
    """Steps whole tensors, and takes the shards of them."""
    import torch.optim._adafactor as module
    from torch.distributed.tensor import DTensor, distribute_tensor

    def on_whole_tensors(step: Any) -> Any:
        def stepped(*lists: Any, **options: Any) -> None:
            whole = [
                [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]
                for tensors in lists
            ]
            step(*whole, **options)
            for old, new in zip(lists, whole, strict=True):
                for t, value in zip(old, new, strict=True):
                    if isinstance(t, DTensor):
                        layout = (t.device_mesh, t.placements)
                        t.copy_(distribute_tensor(value, *layout, src_data_rank=None))

        return stepped

    for name in ("_single_tensor_adafactor", "_multi_tensor_adafactor"):
        patch(module, name, on_whole_tensors(getattr(module, name)))

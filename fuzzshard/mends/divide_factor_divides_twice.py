"""On a shard axis of size 1 a custom divide factor divides gradients twice.

``foreach_reduce`` (``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``) copies in place of a
reduce-scatter of one rank, and divides by the factor, which that reduce-scatter would have done. Where sums
are forced, or the reduction's dtype is float16 or float64, it would not have:
``_get_gradient_divide_factors`` then returns factors to divide by before and after, which are applied
as well. The gradients are divided by the square of the factor.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A custom divide factor divides twice on a shard axis of size 1"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Sets a custom divide factor for the gradient reduction", "FSDPModule.set_gradient_divide_factor"
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/195732", "quotes the same line"),
    Public(
        "https://github.com/pytorch/pytorch/pull/167178", "brought the division that is now applied twice"
    ),
    Public(
        query="FSDP2 set_gradient_divide_factor divides twice world size 1 shard mesh size 1",
        date="2026-11-23",
    ),
)
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce"
EDITS = (
    Edit(
        _TARGET,
        "if gradient_divide_factor is not None:",
        "if gradient_divide_factor is not None and postdivide_factor is None:",
        Releases(until="2.15"),
    ),
    Edit(
        _TARGET,
        "if gradient_divide_factor is not None and gradient_divide_factor != 1.0:",
        "if gradient_divide_factor is not None and postdivide_factor is None:",
        Releases(since="2.15"),
    ),
)

"""With an int ``reshard_after_forward`` backward cannot gather what is sharded along another dim
than 0.

``to_sharded_post_forward`` cuts such a parameter by rows of the whole tensor, so concatenating the
parts restores it. ``foreach_all_gather_copy_out``
(``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``; since 2.15
``_default_all_gather_output_fn``) treats the parts as shards along the dim by which the parameter
is sharded on the large mesh, and uses the sizes of the flat part as if they were those of the
parameter: an IndexError. Only what is gathered from the large mesh has to be reordered.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard(reshard_after_forward=int): IndexError in backward when another dim than 0 is "
    "sharded"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If an int, then this represents the world size to reshard to after forward",
    "fully_shard, reshard_after_forward; shard_placement_fn names no such limit",
)
SETUP = (
    "Experts or fused projections are sharded along another dim by ``shard_placement_fn``, and "
    "``reshard_after_forward`` is the number of GPUs of a node."
)
WORKAROUND = "``reshard_after_forward=True`` for these modules."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP2 reshard_after_forward int shard_placement_fn Shard(1) all-gather backward "
        "IndexError foreach_all_gather_copy_out",
        date="2026-11-23",
    ),
)
_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_OLD = "if fsdp_param.fsdp_placement.dim != 0:"
_NEW = (
    "if fsdp_param.fsdp_placement.dim != 0 and fsdp_param.sharded_state == ShardedState.SHARDED:"
)
EDITS = (
    Edit(f"{_MODULE}:foreach_all_gather_copy_out", _OLD, _NEW, Releases(until="2.15")),
    Edit(f"{_MODULE}:_default_all_gather_output_fn", _OLD, _NEW, Releases(since="2.15")),
)

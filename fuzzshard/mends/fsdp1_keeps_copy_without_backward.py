"""FSDP1 keeps the gathered copy of a unit that took no part in a backward, and computes with it
for good.

With a strategy that does not reshard after the forward, ``_catch_all_reshard`` of
``torch/distributed/fsdp/_runtime_utils.py`` is to reshard after the backward what no hook has
resharded. It takes a flat parameter that points at its shard for resharded, but after such a
forward it points there while its gathered copy is still allocated. So the copy of a unit whose
backward does not run (frozen, or with an output that the loss does not use) stays, the next
forward finds it and gathers nothing, and what was written to the parameters meanwhile is ignored.
With ``use_orig_params`` it takes a last forward under ``no_grad`` besides.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1 SHARD_GRAD_OP: written parameters are ignored when their unit took no part in the "
    "backward"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "only reshards them after the backward computation",
    "torch/distributed/fsdp/api.py, ShardingStrategy, on SHARD_GRAD_OP",
)
SETUP = (
    "A frozen unit is written to in the middle of training: the teacher of a distillation that "
    "follows the student (EMA), or weights that are loaded. Its forward goes on with the old "
    "ones."
)
WORKAROUND = "Use ``FULL_SHARD``, which gathers anew in every forward."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/106858",
        "closed: near, the copy of a model that is only evaluated (EMA weights) outlasts its "
        "update with SHARD_GRAD_OP; mended for mixed precision alone",
        "FSDP SHARD_GRAD_OP weights update ignored next forward uses old parameters; EMA with "
        "frozen layers",
        "2026-11-23",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/83129",
        "closed, near: units whose post-backward hook does not fire; _catch_all_reshard came of it",
        "FSDP _catch_all_reshard already_resharded unsharded flat parameter not freed "
        "SHARD_GRAD_OP",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_catch_all_reshard",
        """
        and not state._handle._skipped_use_sharded_views
        """,
        """
        and not state._handle._skipped_use_sharded_views
        # After a forward without resharding it points there, too, while
        # the unsharded copy is still allocated
        and (
            not state._handle.uses_sharded_strategy
            or state._handle.needs_unshard()
        )
        """,
    ),
)

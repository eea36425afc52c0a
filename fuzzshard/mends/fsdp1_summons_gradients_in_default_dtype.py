"""``summon_full_params(with_grads=True)`` gathers gradients from a buffer of the default dtype.

Where some ranks have no gradient, ``unshard_grad`` in ``torch/distributed/fsdp/_flat_param.py``
gathers zeros from these, which are made without a dtype: float32, whatever the parameters are. The
other ranks gather their gradients in the parameters' dtype, so that the ranks disagree about the
bytes to send, and hang or die.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "summon_full_params(with_grads=True): ranks hang when one has no gradient and dtypes are "
    "not float32"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If ``True``, gradients are also unsharded with the parameters",
    "FullyShardedDataParallel.summon_full_params, with_grads",
)
SETUP = (
    "Gradients of a bfloat16 model are read for a log, and a rank has none for a part of the "
    "model: an expert that got no token there."
)
WORKAROUND = (
    "Call it with the default dtype set to that of the parameters (``torch.set_default_dtype``)."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/112717",
        "closed, near: the buffer that is gathered into was of the default dtype as well; this one "
        "still is",
        "summon_full_params with_grads dtype mismatch some ranks None gradient zeros default "
        "dtype all_gather",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle.unshard_grad",
        """
        sharded_grad = torch.zeros(flat_param._sharded_size, device=self.device)  # type: ignore[attr-defined]
        """,
        """
        sharded_grad = torch.zeros(
            flat_param._sharded_size, dtype=flat_param.dtype, device=self.device
        )
        """,
    ),
)

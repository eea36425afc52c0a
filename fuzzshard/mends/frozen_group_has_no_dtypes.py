"""A group that is all frozen when it looks for its dtypes has none, and keeps none once it is
thawed.

``FSDPParamGroup._init_mp_dtypes`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``)
takes the dtype of the parameters and that of the reduction from those that are trainable, in the
first forward. Where none is, both are None, and nothing looks again. Gradients that come
afterwards are reduced in their own dtype and handed to the sharded parameter as they are: a crash
for a float32 parameter with bfloat16 gradients, a reduction in another dtype than ``reduce_dtype``
otherwise. Torch 2.14 takes the dtypes of frozen parameters, where these have one dtype; 2.15 asks
each parameter. It is enough to look again when the first gradients arrive, and to count a frozen
parameter whose gradient waits for its reduction.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: reduce_dtype is ignored or backward fails when a group is thawed after its "
    "first forward"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "specifies the dtype for gradient reduction", "MixedPrecisionPolicy, reduce_dtype"
)
SETUP = (
    "Fine-tuning freezes whole blocks and thaws them one after the other, under mixed precision."
)
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/186998",
        "fixed by pytorch PR 187376, in torch 2.14, for groups of one dtype",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        """
        self._training_state = TrainingState.POST_BACKWARD
        """,
        """
        self._training_state = TrainingState.POST_BACKWARD
        if self._orig_dtype is None:
            self._init_mp_dtypes()
            for param in self.fsdp_params:
                if self._orig_dtype is None and param.unsharded_accumulated_grad is not None:
                    self._orig_dtype, self._reduce_dtype = param.orig_dtype, param.reduce_dtype
        """,
    ),
)

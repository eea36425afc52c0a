"""A group that is all frozen when it looks for its dtypes has none, and keeps none once it is
thawed.

``FSDPParamGroup._init_mp_dtypes`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``)
takes the dtype of the parameters and that of the reduction from those that are trainable, in the
first forward and in each ``unshard()``. Where none is, both are None, and nothing looks again.
Gradients that come afterwards are reduced in their own dtype and handed to the sharded parameter
as they are: a crash for a float32 parameter with bfloat16 gradients, a reduction in another dtype
than ``reduce_dtype`` otherwise. The dtypes of frozen parameters are as good; torch 2.14 takes
them.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A group of fully_shard has no dtypes while all of it is frozen"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "specifies the dtype for gradient reduction", "MixedPrecisionPolicy, reduce_dtype"
)
TORCH = Releases(since="2.11", until="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/186998",
        "fixed by pytorch PR 187376, in torch 2.14",
    ),
)
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._init_mp_dtypes"
EDITS = (
    Edit(
        _TARGET,
        """
orig_dtypes = {p.orig_dtype for p in trainable_params}
reduce_dtypes = {p.reduce_dtype for p in trainable_params}
        """,
        """
params = trainable_params or [p for p in self.fsdp_params if p.orig_dtype.is_floating_point]
orig_dtypes = {p.orig_dtype for p in params}
reduce_dtypes = {p.reduce_dtype for p in params}
uniform = len(orig_dtypes) == 1 and len(reduce_dtypes) == 1
        """,
    ),
    Edit(
        _TARGET,
        "self._orig_dtype = next(iter(orig_dtypes)) if trainable_params else None",
        "self._orig_dtype = next(iter(orig_dtypes)) if uniform else None",
    ),
    Edit(
        _TARGET,
        "self._reduce_dtype = next(iter(reduce_dtypes)) if trainable_params else None",
        "self._reduce_dtype = next(iter(reduce_dtypes)) if uniform else None",
    ),
)

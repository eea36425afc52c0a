"""A recomputation runs a wrapped module on inputs that are not cast, and does not cast its
outputs.

``FSDPState._pre_forward`` (``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``) returns before
the cast of inputs where a checkpoint recomputes a module whose backward has begun, and
``_post_forward`` before that of outputs. The module then meets inputs in the original dtype and
parameters in ``param_dtype``, or what is recomputed has other dtypes than what forward saved.
Torch 2.13 casts there, too.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A recomputation does not cast the inputs of a wrapped module"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Specifies whether FSDP should cast the forward's floating-point input tensors to param_dtype "
    "or not",
    "MixedPrecisionPolicy, cast_forward_inputs",
)
TORCH = Releases(since="2.11", until="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/159359",
        "fixed by pytorch PR 182580, in torch 2.13",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._pre_forward",
        "# With nested FSDP and multiple forward passes before backward,",
        """
if self._mp_policy.cast_forward_inputs and self._mp_policy.param_dtype:
    cast_fn = functools.partial(_cast_fp_tensor, self._mp_policy.param_dtype)
    args, kwargs = _apply_to_tensors(cast_fn, args), _apply_to_tensors(cast_fn, kwargs)
# With nested FSDP and multiple forward passes before backward,
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._post_forward",
        """
        if self._training_state == TrainingState.PRE_BACKWARD:
            return output
        """,
        """
        if self._training_state == TrainingState.PRE_BACKWARD:
            if self._mp_policy.output_dtype is not None:
                cast_fn = functools.partial(_cast_fp_tensor, self._mp_policy.output_dtype)
                output = _apply_to_tensors(cast_fn, output)
            return output
        """,
    ),
)

"""HSDP adds a partial reduction to whatever is reduced next, though other parameters have
gradients then.

With ``set_requires_all_reduce(False)`` a group keeps what it has reduce-scattered as one flat
tensor, of the parameters that have a gradient in that backward (``FSDPParamGroup.post_backward``
in ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``, ``foreach_reduce`` in
``_fsdp_collectives.py``). It does not keep which ones. Where the next backward gives others a
gradient, the two flat tensors are added all the same: sizes differ, or gradients go to the wrong
parameters. Where it gives none a gradient, the partial reduction waits for a later step. Torch
2.15 keeps the layout, reduces zeros for what only waits, and lays a partial reduction out anew.
Torch 2.11 visits a list group once for each of its modules when backward ends, and a second visit
would reduce such zeros again: it has to be one visit, as it is since torch 2.12
(``FSDPState._lazy_init`` in ``_fsdp_state.py``).
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "set_requires_all_reduce(False): gradients go to other parameters when the next backward "
    "reaches others"
)
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "gradient accumulation with only reduce-scatter but not all-reduce for HSDP",
    "FSDPModule.set_requires_all_reduce",
)
SETUP = (
    "HSDP accumulates with reduce-scatter only, and experts or branches get gradients in some "
    "microbatches only. A lost gradient enters the step of the next iteration."
)
WORKAROUND = "All-reduce in every microbatch."
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        query="FSDP2 HSDP set_requires_all_reduce False partial_reduce_output size mismatch "
        "gradient accumulation unused parameters",
        date="2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/194628",
        "open; near: another change of the same buffer, about its dtype",
        "FSDP2 HSDP set_requires_all_reduce(False) partial reduce output wrong parameters gradient"
        " accumulation",
        "2026-11-23",
    ),
)
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward"
_NO_GRADIENTS = """
if len(fsdp_params_with_grad) == 0:
    return
"""
EDITS = (
    Edit(
        _TARGET,
        """
elif fsdp_param.unsharded_param.grad is not None:
    fsdp_params_with_grad.append(fsdp_param)
    unsharded_grads.append(fsdp_param.unsharded_grad_data)
    fsdp_param.unsharded_param.grad = None
        """,
        """
elif fsdp_param.unsharded_param.grad is not None:
    fsdp_params_with_grad.append(fsdp_param)
    unsharded_grads.append(fsdp_param.unsharded_grad_data)
    fsdp_param.unsharded_param.grad = None
elif self._partial_reduce_output is not None and fsdp_param in self._partial_reduce_params:
    fsdp_params_with_grad.append(fsdp_param)
    unsharded_grads.append(fsdp_param._get_grad_inner_tensor(torch.zeros_like(fsdp_param.unsharded_param)))
        """,
    ),
    Edit(
        _TARGET,
        _NO_GRADIENTS,
        _NO_GRADIENTS
        + """
if self._partial_reduce_output is not None and self._partial_reduce_params != fsdp_params_with_grad:
    with self.device_handle.stream(self.comm_ctx.reduce_scatter_stream):
        sizes = [p.padded_sharded_param_size.numel() for p in self._partial_reduce_params]
        partial = dict(zip(self._partial_reduce_params, self._partial_reduce_output.split(sizes)))
        zeros = self._partial_reduce_output.new_zeros
        self._partial_reduce_output = torch.cat(
            [
                partial[p] if p in partial else zeros(p.padded_sharded_param_size.numel())
                for p in fsdp_params_with_grad
            ]
        )
self._partial_reduce_params = list(fsdp_params_with_grad)
        """,
    ),
)

"""``summon_full_params(with_grads=True)`` hands NCCL a gradient that CPU offload keeps on the host.

With ``CPUOffload(offload_params=True)`` FSDP1 keeps the sharded gradient on the host, and
``unshard_grad`` (``torch/distributed/fsdp/_flat_param.py``) all-gathers it as it is into a buffer
on the device: "Expected tensor on cuda:0 but found tensor on cpu". Parameters are copied to the
device before their all-gather, and gradients have to be as well. The sharded gradient itself is
kept, and is the gradient again afterwards. gloo gathers both kinds, so only CUDA shows it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "summon_full_params(with_grads=True): an error in the all-gather when parameters are offloaded"
)
COMPONENT = "FSDP1"
WEIGHT = "limitation"
CONTRACT = Promise(
    "If ``True``, gradients are also unsharded with the parameters",
    "FullyShardedDataParallel.summon_full_params, with_grads",
)
SETUP = "Whole gradients are read for a log or a custom optimizer while parameters are offloaded."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/98817",
        "closed without a change: FSDP1 gets none",
        "FSDP summon_full_params with_grads=True CPUOffload offload_params all_gather tensor on cpu",
        "2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle.unshard_grad",
        """
            sharded_grad = flat_param._saved_grad_shard  # type: ignore[attr-defined]
        """,
        """
            sharded_grad = flat_param._saved_grad_shard.to(self.device)
        """,
    ),
)

"""An all-gather extension of a parameter of which a rank has no elements raises.

``FSDPParam._unflatten_all_gather_outputs`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``)
views each tensor that was gathered as ``(-1, *size[1:])``, with the size of what
``fsdp_pre_all_gather`` returned. Tensor parallelism may leave a rank a weight of the size (4, 0),
and then torch cannot tell what -1 stands for. The ranks that have elements go on, and wait for the
others. The first size is that of the shard, as often as there are shards.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: an all-gather extension raises when tensor parallelism leaves a rank nothing"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly divisible on the device mesh dimension",
    "torch.distributed.tensor.Shard",
)
SETUP = (
    "Weights of a tensor subclass gather in another dtype, and tensor parallelism splits a small "
    "layer row-wise over more ranks than it has inputs. The first forward raises on the ranks "
    "without elements, and the others wait for them."
)
WORKAROUND = "Leave the layer out of the tensor-parallel plan."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/137005",
        "near: allows uneven shards for extensions",
        "fully_shard fsdp_post_all_gather _unflatten_all_gather_outputs cannot reshape tensor of 0 "
        "elements; FSDP2 extension tensor parallel empty shard -1 is ambiguous; "
        "fsdp_pre_all_gather zero elements view(-1) init_unsharded_param",
        "2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._unflatten_all_gather_outputs",
        """
            t.view(-1, *s[1:])
        """,
        """
            t.view(-1 if t.numel() else s[0] * getattr(self.mesh_info, "shard_mesh_size", 1), *s[1:])
        """,
    ),
)

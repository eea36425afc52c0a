"""With an int ``reshard_after_forward`` a frozen parameter is trainable from forward to backward.

``FSDPParam.to_sharded_post_forward`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``)
makes an ``nn.Parameter`` for the smaller mesh without ``requires_grad``, which is True by default.
Other forms of the parameter take that of the sharded one; torch 2.12 does here as well.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "With an int reshard_after_forward a frozen parameter counts as trainable until backward"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "set_requires_grad_if_needed(self.sharded_param, self._unsharded_param)",
    "torch/distributed/fsdp/_fully_shard/_fsdp_param.py, init_unsharded_param: freezing survives "
    "sharding",
)
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/177844", "names the line, for another symptom"
    ),
    Public("https://github.com/pytorch/pytorch/issues/185239"),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_sharded_post_forward",
        "self.to_sharded_post_forward_dtensor(sharded_post_forward_tensor)",
        """
self.to_sharded_post_forward_dtensor(sharded_post_forward_tensor),
requires_grad=self.sharded_param.requires_grad,
        """,
    ),
)

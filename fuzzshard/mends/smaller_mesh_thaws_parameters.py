"""With an int ``reshard_after_forward`` a frozen parameter is trainable from forward to backward.

``FSDPParam.to_sharded_post_forward`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``)
makes an ``nn.Parameter`` for the smaller mesh without ``requires_grad``, which is True by default.
Other forms of the parameter take that of the sharded one; torch 2.12 does here as well.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard(reshard_after_forward=int): a frozen parameter requires gradients when forward"
    " has ended"
)
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Change if autograd should record operations on this tensor: sets this tensor's "
    ":attr:`requires_grad` attribute in-place.",
    "torch.Tensor.requires_grad_; nothing says that a forward undoes it",
)
SETUP = (
    "LoRA with ``reshard_after_forward`` as the number of GPUs of a node: whoever looks after a"
    " forward finds frozen parameters trainable."
)
WORKAROUND = "Call ``reshard()`` on the module before its parameters are looked at."
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/177844",
        "near: names the line, for another symptom",
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

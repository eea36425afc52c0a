"""A state dict from before the first forward goes stale where parameters are tensors of a subclass.

``FSDPParam.reset_sharded_param`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) runs once
more before the first forward. It pads the local tensor and gives the parameter a new one, unless
the memory of the local tensor is what the group has padded already. It compares the two for tensors
of type ``torch.Tensor`` alone ("TODO: need to support tensor subclass"). So the padded shard of a
subclass, which has ``fsdp_pre_all_gather``, is copied, and the DTensor of an earlier
``state_dict()`` holds the old one. A wrapper subclass has no memory of its own; its inner tensors
have, and they can be compared.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: a cached state dict goes stale when a tensor subclass is sharded unevenly"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "this makes it possible for trainer to call `sd = model.state_dict()` before the training "
    "loop and use `sd` without calling .state_dict() per iteration",
    "torch/distributed/fsdp/_fully_shard/_fsdp_param.py, reset_sharded_param",
)
SETUP = (
    "Parameters are tensors of a subclass with ``fsdp_pre_all_gather`` and "
    "``fsdp_post_all_gather``, as in float8 training, and a rank has fewer rows of one than "
    "others. The trainer takes ``model.state_dict()`` once, before the loop, and saves it as a "
    "checkpoint later. On the ranks with fewer rows the checkpoint has the initial values."
)
WORKAROUND = "Call ``model.state_dict()`` for every checkpoint."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/163130",
        "near: the same for plain tensors, fixed; subclasses are left out",
        "fully_shard tensor subclass state_dict stale before first forward uneven padding "
        "reset_sharded_param fsdp_pre_all_gather",
        "2026-11-26",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param",
        """
        if type(self._sharded_param_data) is torch.Tensor:
            same_local_tensor = (
                # when sharding param with shape (1, ...) over 2 ranks
                # local_tensor on rank 1 can be size 0, data_ptr() can be 0
                self._sharded_param_data.untyped_storage().data_ptr() > 0
                and self._sharded_param_data.untyped_storage().data_ptr()
                == local_tensor.untyped_storage().data_ptr()
            )
        """,
        """
        def storages(tensor):
            if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
                names, _ = tensor.__tensor_flatten__()
                return [p for name in names for p in storages(getattr(tensor, name))]
            return [tensor.untyped_storage().data_ptr()]

        padded = storages(self._sharded_param_data)
        same_local_tensor = min(padded) > 0 and padded == storages(local_tensor)
        """,
    ),
)

"""The root leaves its inputs on the device that they come from."""

from torch.distributed.fsdp._fully_shard import _fsdp_state


def apply() -> None:
    _fsdp_state._to_kwargs = lambda args, kwargs, device, side_stream: ((args,), (kwargs,))

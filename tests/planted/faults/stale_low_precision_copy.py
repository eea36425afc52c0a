"""The low-precision copies of parameters are made once and gathered for ever, whatever the
optimizer does.
"""

from torch.distributed.fsdp._fully_shard import _fsdp_collectives


def apply() -> None:
    all_gather_inputs = _fsdp_collectives._get_param_all_gather_inputs

    def wrong(fsdp_params):
        first = fsdp_params[0]
        if first.param_dtype is None:
            return all_gather_inputs(fsdp_params)
        if not hasattr(first, "first_copies"):
            first.first_copies = all_gather_inputs(fsdp_params)
        return first.first_copies

    _fsdp_collectives._get_param_all_gather_inputs = wrong

"""What is gathered was read before the all-gather had to wait: it is what the last one should have
sent.
"""

from torch.distributed.fsdp._fully_shard import _fsdp_collectives


def apply() -> None:
    all_gather_inputs = _fsdp_collectives._get_param_all_gather_inputs

    def wrong(fsdp_params):
        now = [
            [tensor.clone() for tensor in tensors] for tensors in all_gather_inputs(fsdp_params)
        ]
        before = getattr(fsdp_params[0], "sent", now)
        fsdp_params[0].sent = now
        return before

    _fsdp_collectives._get_param_all_gather_inputs = wrong

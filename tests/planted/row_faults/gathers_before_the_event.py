"""A forward that has an event to wait for gathers what was there before the step."""

from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    root_pre_forward = FSDPState._root_pre_forward
    all_gather_inputs = _fsdp_collectives._get_param_all_gather_inputs
    early = False

    def enter(self, module, args, kwargs):
        nonlocal early
        if self._state_ctx.iter_forward_root is None:
            early = self._state_ctx.post_optim_event is not None
        return root_pre_forward(self, module, args, kwargs)

    def wrong(fsdp_params):
        now = [
            [tensor.clone() for tensor in tensors] for tensors in all_gather_inputs(fsdp_params)
        ]
        before = fsdp_params[0].sent if early else now
        fsdp_params[0].sent = now
        return before

    FSDPState._root_pre_forward = enter
    _fsdp_collectives._get_param_all_gather_inputs = wrong

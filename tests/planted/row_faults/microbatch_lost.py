"""A backward that is not the last one loses the gradients that wait to be reduced."""

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    final_callback = FSDPState._root_post_backward_final_callback

    def wrong(self):
        final_callback(self)
        for state in self._state_ctx.all_states if not self._state_ctx.is_last_backward else ():
            for group in state._fsdp_param_groups:
                for param in group.fsdp_params:
                    param.unsharded_param.grad = None

    FSDPState._root_post_backward_final_callback = wrong

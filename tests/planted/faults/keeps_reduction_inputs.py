"""The end of the backward waits for the reductions and keeps their inputs."""

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    final_callback = FSDPState._root_post_backward_final_callback

    def wrong(self):
        kept = list(self._comm_ctx.reduce_scatter_states)
        final_callback(self)
        self._comm_ctx.reduce_scatter_states.extend(kept)

    FSDPState._root_post_backward_final_callback = wrong

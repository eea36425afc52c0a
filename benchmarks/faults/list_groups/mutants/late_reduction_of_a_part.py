"""A group of several modules of which only some ran is left out of what the end of a backward
does.

Where no input of the group requires a gradient, no post-backward runs within the backward, and the
end of it has to reduce. Here it does so only for groups that ran as a whole.
"""

from typing import Any

from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    complete = FSDPState._force_complete_incomplete_states
    end = FSDPState._root_post_backward_final_callback

    def complete_and_remember(self: FSDPState, output: Any) -> Any:
        for state in self._state_ctx.all_states:
            if state is not self and state._modules_to_run_forward:
                state.ran_in_part = True
        return complete(self, output)

    def end_of_the_others(self: FSDPState) -> None:
        for state in self._state_ctx.all_states:
            if getattr(state, "ran_in_part", False):
                for group in state._fsdp_param_groups:
                    group._training_state = TrainingState.POST_BACKWARD
            state.ran_in_part = False
        end(self)

    FSDPState._force_complete_incomplete_states = complete_and_remember
    FSDPState._root_post_backward_final_callback = end_of_the_others

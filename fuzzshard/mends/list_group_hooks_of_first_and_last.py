"""Only the first module of a list group to run has its pre-forward hook, only the last one its
post-forward.

``_register_group_forward_hooks`` (torch/distributed/fsdp/_fully_shard/_fsdp_state.py) counts the
modules of a group that have yet to run. One that runs while another has yet to is taken for a part
of the same forward: its inputs and outputs are not cast, and a group that a post-forward, a
backward or a method of another name has sharded in between is not gathered. One that runs more
often than the others begins a forward that nothing ends. Every module has to find the group
gathered, and the end of the root's forward has to end that of its groups, as both do since torch
2.13.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard([a, b]): inputs are not cast and parameters are not gathered when a and b run "
    "apart"
)
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Before forward, FSDP all-gathers the sharded parameters across the data-parallel workers to "
    "get "
    "the unsharded parameters for forward computation.",
    "fully_shard",
)
SETUP = "The embedding and the head are one group, and the whole model runs between them."
WORKAROUND = "Wrap the modules in groups of their own."
TORCH = Releases(since="2.11", until="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says="merged: the fix in torch 2.13",
        query=(
            "fully_shard grouped modules aten.mm.default got mixed torch.Tensor and DTensor "
            "partial "
            "group forward"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
        if len(modules_to_run) == 0:  # first to run
            modules_to_run.update(modules_set)
            return pre_hook(*args, **kwargs)
        """,
        """
        if len(modules_to_run) == 0:  # first to run
            modules_to_run.update(modules_set)
        return pre_hook(*args, **kwargs)
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
        return wrapped_post_hook
        """,
        """
        def casting_post_hook(module: nn.Module, args: Any, output: Any) -> Any:
            changed = wrapped_post_hook(module, args, output)
            dtype = post_hook.__self__._mp_policy.output_dtype
            if changed is not None or dtype is None:
                return changed
            return _apply_to_tensors(functools.partial(_cast_fp_tensor, dtype), output)

        return casting_post_hook
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._post_forward",
        """
        if self._state_ctx.iter_forward_root is self:
        """,
        """
        self._modules_to_run_forward.clear()
        if self._state_ctx.iter_forward_root is self:
            for state in self._state_ctx.all_states:
                if state is not self and state._modules_to_run_forward:
                    state._modules_to_run_forward.clear()
                    state._post_forward(module, input, output)
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.pre_forward",
        """
        self._training_state = TrainingState.FORWARD
        self.unshard(self.unshard_async_op)
        self.wait_for_unshard()
        args, kwargs = self._register_post_backward_hook(args, kwargs)
        """,
        """
        entering = self._training_state != TrainingState.FORWARD
        self._training_state = TrainingState.FORWARD
        self.unshard(self.unshard_async_op)
        self.wait_for_unshard()
        if entering:
            args, kwargs = self._register_post_backward_hook(args, kwargs)
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
        """
        state._training_state = TrainingState.IDLE
        """,
        """
        state._modules_to_run_forward.clear()
        state._training_state = TrainingState.IDLE
        """,
    ),
)

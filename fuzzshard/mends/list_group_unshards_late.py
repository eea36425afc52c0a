"""A group of several modules unshards in backward only for the module whose forward ran last.

``fully_shard([a, b])`` registers one post-forward hook on each module, and only the one that
completes the group runs ``FSDPState._post_forward``, which registers the pre-backward hook on that
module's output (``_register_group_forward_hooks`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``). The outputs of the other modules have no
hook. Where a backward comes to them first, or only to them, it reads sharded parameters: a mix of
DTensors and tensors, freed storage, or gradients that are never reduced. The same holds where the
group ran in part and nothing completed it. The hook belongs on the output of every module.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A group of several modules unshards in backward only for the output of its last module"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "The module or modules to shard with FSDP and group together for communication",
    "fully_shard, module",
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/issues/183702",
        says="open: a module of the group that runs again later in the iteration",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says="near: merged for 2.13, supports partial forwards and leaves this one",
        query="fully_shard list of modules partial forward gradients None not reduced "
        "pre-backward hook",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
                return cast_output_dtype(output)
        """,
        """
                state = post_hook.__self__
                if state._training_state != TrainingState.PRE_BACKWARD:
                    output = state._register_pre_backward_hook(output)
                return cast_output_dtype(output)
        """,
        Releases(since="2.13"),
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
        modules_to_run.discard(module)
        """,
        """
        modules_to_run.discard(module)
        state = post_hook.__self__
        if state._training_state != TrainingState.PRE_BACKWARD:
            state._register_pre_backward_hook(args[2])
        """,
        Releases(until="2.13"),
    ),
)

"""FSDP1 leaves gradients local that no post-backward hook of their unit reduces.

Gradients are reduced by ``_post_backward_hook`` in ``torch/distributed/fsdp/_runtime_utils.py``
alone, which is registered on the ``AccumulateGrad`` of the first forward since the last backward
(``_register_post_backward_hook``). It does not run where the backward that synchronizes misses a
unit that accumulated under ``no_sync()``, and not where the first forward's output is unused: with
a ``param_dtype`` every forward has an ``AccumulateGrad`` of its own, which the docstring there
names as the reason for preferring the first. The gradient stays local then: an assertion fails at
the end of backward, or an earlier gradient takes its place, or the replicas drift apart
(``NO_SHARD``). Under ``no_sync()`` the next forward drops it (``use_orig_params``), as only the
hook hands it to the original parameters. Whatever has accumulated has to be reduced, or handed
over, at the latest when the backward ends.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: gradients are None or stay local when no post-backward hook of their unit runs"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "For gradients, it synchronizes and shards them (via reduce-scatter) after the backward "
    "computation.",
    "ShardingStrategy, FULL_SHARD",
)
SETUP = (
    "With a ``param_dtype``, a module runs twice with gradients enabled, and the first output is "
    "detached or only logged: a head that teacher and student share (issue 94857). Its gradients "
    "are None. Running that forward under ``no_grad()`` avoids it."
)
WORKAROUND = "Run the first forward under ``no_grad()``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/issues/94857",
        says="closed: the same with an unused first forward, by a maintainer",
        query="FSDP mixed precision gradients None forward called twice first output detached",
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/95326",
        says="merged: documents that the hook is registered in the first forward only",
    ),
    Public(
        says="near: pytorch PRs 90546 and 92874, which let use_orig_params hold the unsharded "
        "gradients of no_sync(), and PR 80245, which keeps a backward that misses a unit "
        "from failing",
        query="FSDP no_sync gradients not reduced unused module last microbatch unsharded "
        "gradient _post_backward_called",
        date="2026-11-23",
    ),
    Public(
        says="near: fairscale PR 513, which prefers the first forward's AccumulateGrad",
        query="FSDP mixed precision module called twice post-backward hook AccumulateGrad first "
        "forward gradients None",
        date="2026-11-23",
    ),
    Public(
        query="FSDP MixedPrecision param_dtype module called twice in forward first output unused "
        "all gradients None",
        date="2026-11-24",
    ),
)
_FILE = "torch.distributed.fsdp._runtime_utils"
EDITS = (
    Edit(
        f"{_FILE}:_register_post_backward_hook",
        """
        already_registered = hasattr(flat_param, "_post_backward_hook_state")
        """,
        """
        already_registered = hasattr(flat_param, "_post_backward_hook_state")
        if flat_param.requires_grad:
            node = flat_param.expand_as(flat_param).grad_fn.next_functions[0][0]
            hook = node.register_prehook(lambda *unused: setattr(flat_param, "_unreduced", True))
            if len(hook.hooks_dict_ref()) > 1:  # an earlier forward has the same node
                hook.remove()
        """,
    ),
    Edit(
        f"{_FILE}:_post_backward_hook",
        """
        if handle.uses_sharded_strategy:
        """,
        """
        flat_param._unreduced = False
        if handle.uses_sharded_strategy:
        """,
    ),
    Edit(
        f"{_FILE}:_post_backward_final_callback",
        """
        if root_state._sync_gradients:
        """,
        """
        # Reduce what has accumulated and no post-backward hook has reduced; or keep it for later
        for fsdp_state in state._all_fsdp_states:
            handle = fsdp_state._handle
            if (
                handle
                and handle.flat_param.requires_grad
                and handle.flat_param.grad is not None
                and getattr(handle.flat_param, "_unreduced", False)
            ):
                fsdp_state.training_state = TrainingState.FORWARD_BACKWARD
                handle._training_state = HandleTrainingState.BACKWARD_POST
                handle._post_forward_index = None  # nothing to prefetch
                _post_backward_hook(fsdp_state, handle, handle.flat_param)
        if root_state._sync_gradients:
        """,
    ),
)

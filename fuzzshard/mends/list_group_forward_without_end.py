"""The forward of a list group never ends when one of its modules runs by itself.

``FSDPState._post_forward`` is called by the hook that finds that every module of the group has run,
or else when the forward of the root ends (``_register_group_forward_hooks`` and
``_force_complete_incomplete_states`` in torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
Neither happens if only ``head(features)`` is called, or a module of the group that is outside of
the FSDP root of the others. The group then stays unsharded and in its forward state, with itself
as ``iter_forward_root``, until a backward ends. So the next forward of the root believes that it is
an inner one: its inputs are not moved to the GPU, and the output of the last all-gather is kept.
With this change, a forward ends with the module that began it. Then a loss in chunks that calls
the head several times gathers it for each chunk, unless ``reshard_after_forward`` is False.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard([a, b]): the group stays unsharded when only one of its modules runs"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If ``True``, then this reshards parameters after forward and re-all-gathers in backward.",
    "fully_shard, reshard_after_forward",
)
SETUP = (
    "The final norm and the head are one group, ``fully_shard([norm, head])``, as in torchtitan, "
    "and the head alone scores features that were computed before. The group stays in memory as "
    "a whole until a backward ends."
)
WORKAROUND = "Wrap the head in a group of its own."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
from collections import OrderedDict

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(OrderedDict(norm=nn.LayerNorm(4), head=nn.Linear(4, 2)))
fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=True)
fully_shard(model, mesh=mesh)
features = torch.ones(1, 4)
with torch.no_grad():
    model(features)
    assert isinstance(model.head.weight, DTensor)
    model.head(features)  # computed before
assert isinstance(model.head.weight, DTensor), "the head is still unsharded"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says=(
            "near: merged for 2.13; it promises reduced gradients for any call pattern that runs "
            "some submodule, and clears iter_forward_root at the end of a backward only"
        ),
        query=(
            "fully_shard list of modules partial forward group stays unsharded iter_forward_root "
            "chunked loss"
        ),
        date="2026-11-23",
    ),
    Public(
        link="https://github.com/pytorch/torchtitan/pull/3229",
        says="near: closed, takes the head out of the group for a chunked loss, for a crash",
        query=(
            "FSDP2 fully_shard([norm, lm_head]) lm_head called alone gradient None hidden states "
            "detached"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._pre_forward",
        """
        self._training_state = TrainingState.FORWARD
        """,
        """
        if self._training_state != TrainingState.FORWARD:
            self._began = module
        self._training_state = TrainingState.FORWARD
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
        if len(modules_to_run) == 0:
            return post_hook(hook_module, input, output)
        """,
        """
        state = post_hook.__self__
        if state._state_ctx.iter_forward_root is state and state._began is hook_module:
            modules_to_run.clear()
        if len(modules_to_run) == 0:
            return post_hook(hook_module, input, output)
        """,
    ),
)

"""``DeviceMesh.__getitem__`` leaves a context variable behind with every call.

Since 2.14 ``_create_sub_mesh`` (torch/distributed/device_mesh.py) runs within
``torch._dynamo.disable_nested_graph_breaks()``, a ``config.patch()``. Each patch makes a
``ContextVar`` of its own and sets it (``ConfigPatch`` in torch/utils/_config_module.py). On exit it
is set to an empty tuple and not reset, so the context of the thread has it, and its name, for ever.
Python's documentation says that contexts keep them: "Context Variables should be created at top
module level and never in closures" (contextvars). The mend resets the variable, which removes it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DeviceMesh: every mesh[...] leaves a context variable behind, so that memory grows"
COMPONENT = "other"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Context manager/decorator to disable nested graph breaks when tracing this function and any "
    "nested functions.",
    "torch/_dynamo/decorators.py, disable_nested_graph_breaks: nothing of it outlasts the context",
)
SETUP = (
    "A training loop that asks for a part of its mesh in every step, as for the group of a norm: "
    '``mesh["pp"].get_group()``. Whatever copies the context holds all of them, too.'
)
WORKAROUND = "Ask for the parts of a mesh once."
TORCH = Releases(since="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/179345",
        "near: where patches got a ContextVar each, for threads",
        "torch._dynamo.config.patch ContextVar memory leak grows DeviceMesh getitem slicing "
        "disable_nested_graph_breaks",
        "2026-11-30",
    ),
    Public(
        query="ConfigPatch ContextVar leak config.patch allocates a ContextVar each call",
        date="2026-11-30",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import contextvars

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("pp", "dp"))
mesh["pp"]  # what the first call makes may stay
before = len(contextvars.copy_context())
for _ in range(100):
    mesh["pp"]
kept = len(contextvars.copy_context()) - before
dist.destroy_process_group()
assert kept == 0, f"100 calls have left {kept} context variables"
"""
_PATCH = "torch.utils._config_module:ConfigModule.patch"
EDITS = (
    Edit(
        _PATCH,
        "self._prior.set((*prior_stack, prior))",
        "self.tokens[id(prior)] = self._prior.set((*prior_stack, prior))",
    ),
    Edit(_PATCH, "self.changes = changes", "self.changes, self.tokens = changes, {}"),
    Edit(
        _PATCH,
        "self._prior.set(prior_stack[:-1])",
        """
        if (token := self.tokens.pop(id(prior), None)) is None:
            self._prior.set(prior_stack[:-1])
        else:
            self._prior.reset(token)
        """,
    ),
)

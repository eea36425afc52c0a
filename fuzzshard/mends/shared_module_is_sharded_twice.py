"""``fully_shard`` shards a module twice that lies below a sharded one and has a second name
outside of it.

``_get_managed_modules`` (``torch/distributed/fsdp/_fully_shard/_fsdp_init.py``) leaves out what an
earlier call has sharded by not going into the modules that it was applied to. A module below one
of them that is registered elsewhere as well is still found by its other name, and its parameters
are sharded once more. With two ranks or more that is an error ("Cannot concatenate overlapping
meshes"); on one rank they become DTensors on a mesh that has its axis twice. What lies below a
sharded module belongs to it, by whatever name.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: a module is sharded twice when it has a second name outside of a sharded one"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "except those already assigned to a group from an earlier call on a submodule",
    "fully_shard, module",
)
SETUP = (
    "A module is registered in a block and in the model, as a shared embedding is; the block is"
    " sharded first, and then the model."
)
WORKAROUND = "Call ``fully_shard`` on the shared module first, by itself."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/torchtitan/issues/2817",
        "near, open: whether modules may share one that fully_shard shards for each of them",
        "fully_shard module registered twice shared submodule nested wrapped sharded twice "
        "_get_managed_modules",
        "2026-11-23",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/117852",
        "near: brought the rule, that fully_shard manages all modules except those already "
        "managed",
        "fully_shard list of modules nested module child not FSDPModule _get_root_modules",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_init:_get_managed_modules",
        """
for root_module in root_modules:
    dfs(root_module)
        """,
        """
for root_module in root_modules:
    dfs(root_module)
below = [module for root_module in root_modules for module in root_module.modules()]
nested = [m for m in below if m not in root_modules_set and get_state_fn(m) is not None]
managed_already = {module for m in nested for module in m.modules()}
modules = [module for module in modules if module not in managed_already]
        """,
    ),
)

"""``fully_shard`` takes a module of its list that lies below another one for sharded, and leaves
it as it is.

``_get_modules_and_states`` (``torch/distributed/fsdp/_fully_shard/_fsdp_init.py``) keeps only the
modules of a list that no other one contains (``_get_root_modules``), as if the others ran only
within their parents. The others get no hooks and do not become FSDPModules, yet ``fully_shard``
returns them. A module that has a second name and is called outside of its parent reads sharded
parameters, and naming one for a prefetch is a ValueError. Such modules need the same hooks as the
other members of the group; the list still has one root.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard([a, b]): b is returned unsharded when it lies below a"
COMPONENT = "fully_shard"
WEIGHT = "limitation"
CONTRACT = Promise(
    "The module or modules to shard with FSDP and group together for communication.",
    "fully_shard, module",
)
SETUP = (
    "A list group names a module and, by a second name, one that lies below it: a head that is "
    "registered in the model and in a block."
)
WORKAROUND = "Leave ``b`` out of the list, and call ``fully_shard`` on it first."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/112625",
        "near: brought the rule, as such modules never run but within another one",
        "fully_shard list of modules nested module child not FSDPModule _get_root_modules",
        "2026-11-23",
    ),
    Public(
        query="FSDP2 fully_shard([a, b]) module nested inside another in list ignored mixed "
        "torch.Tensor and DTensor Expects FSDPModule",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_init:_get_modules_and_states",
        "(module,) if isinstance(module, nn.Module) else tuple(_get_root_modules(module))",
        """
(module,)
if isinstance(module, nn.Module)
else tuple(dict.fromkeys([*_get_root_modules(module), *module]))
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._lazy_init",
        "if len(self._modules) > 1:",
        """
from torch.distributed.utils import _get_root_modules

if len(_get_root_modules(self._modules)) > 1:
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._lazy_init",
        "if module is not root_module:",
        "if state is not self:",
    ),
)

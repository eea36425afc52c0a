"""FSDP1's error of ranks that run other units is a KeyError.

Where ranks run units in different orders in the first iteration, ``_check_order`` in
``torch/distributed/fsdp/_exec_order_utils.py`` looks for the names of their flat parameters. With
``use_orig_params`` these are not registered, so the names are those of the original parameters
(``_get_param_to_fqns``), and ``_get_names_from_handle_indices`` raises a KeyError in place of the
error.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1 use_orig_params: KeyError in place of the documented error when ranks run different "
    "units"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "this uses all-gathers to check that all ranks are all-gathering the same handles and hence "
    "``FlatParameter`` s, raising an error if not",
    "torch/distributed/fsdp/_exec_order_utils.py, _check_order",
)
SETUP = (
    "Ranks take different branches in the first iteration. FSDP1 means to say which units "
    "differ, and dies in looking for their names."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP KeyError _get_names_from_handle_indices param_to_fqn use_orig_params forward "
        "order differs across ranks",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._exec_order_utils:_ExecOrderData._get_names_from_handle_indices",
        """
        fqns.append(self.param_to_fqn[flat_param])
        """,
        """
        params = flat_param._params if handle._use_orig_params else [flat_param]
        fqns.append([name for p in params for name in self.param_to_fqn[p]])
        """,
    ),
)

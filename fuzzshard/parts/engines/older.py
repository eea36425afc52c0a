"""What engines older than ``fully_shard`` do not cover."""

from __future__ import annotations

from fuzzshard.parts.exclusion import Excludes, Exclusion

_DDP = "torch/nn/parallel/distributed.py"
_NO_SYNC = (
    f"{_DDP}, no_sync: 'gradients will be accumulated on module variables, which will later be "
    "synchronized in the first forward-backward pass exiting the context'"
)
OF_FSDP_MODULES = "torch/distributed/fsdp/_fully_shard/_fully_shard.py, FSDPModule: a method of it"

POLICIES = "precision:param|precision:reduce*|precision:output|precision:no_cast"
"""Features of which a wrap group with mixed precision has some."""
HOOKS = "user_hook:tensor_hook|user_hook:post_accumulate_grad_hook|user_hook:step_in_backward"
"""Those of hooks on parameters."""
STATES = "op:save_*|op:load*|op:corrupt|op:rebuild"
"""Those of states that are saved or loaded."""
SCALER = "optimizer:scaled*|optimizer:skipped"
"""Those of a ``GradScaler``."""
UNSYNCED = "schedule:no_sync|schedule:partial_sync|schedule:no_all_reduce"
"""Those of backwards that do not synchronise everything."""

RETYPED = Exclusion(
    "gradients of another dtype than that of the parameter, of which the engine says nothing",
    "torch/_tensor_docs.py, grad_dtype: 'Use with caution. Diverging the dtypes of a tensor and "
    "its gradient may break downstream systems that assume they match.'",
)
OTHER_GRAPH_ON_ONE_RANK = Exclusion(
    "a dropout returns its input, with its graph and hooks, on the rank without rows alone",
    "aten/src/ATen/native/Dropout.cpp, _dropout_impl: an input without elements is returned as it "
    "is; collectives are issued by hooks of the graph, which is to be the same on all ranks "
    "(pytorch issue 152964: 'I would recommend requiring users to make their programs SPMD')",
)
SWAPPED = Exclusion(
    "a hook on a parameter that is cast, or its grad_dtype: a DTensor is exchanged for another, "
    "which has none",
    "torch/utils/__init__.py, swap_tensors: 'this will make t1 have the content of t2 while "
    "preserving its identity'; torch/nn/modules/module.py, _apply, swaps subclasses of Tensor",
)

OF_GROUPS: Excludes = {
    "op:divide_factor": Exclusion(
        "a divide factor, which only groups of fully_shard are told", OF_FSDP_MODULES
    ),
    "communication:zeros_for_unused": Exclusion(
        "zeros for parameters without a gradient, which only groups of fully_shard reduce",
        OF_FSDP_MODULES,
    ),
}
"""What only ``fully_shard`` has, and the reference does as it does."""

OLDER: Excludes = {
    **OF_GROUPS,
    "op:abort_*": Exclusion(
        "an iteration ends with an exception, after which only fully_shard says how to go on",
        f"{OF_FSDP_MODULES}, reset_iter_state",
    ),
    "op:grad_dtype_*": RETYPED,
    "op:cast": Exclusion(
        "parameters are cast: buckets and flat parameters have the dtypes of their construction",
        f"{_DDP}, class docstring: 'You should never try to change your model's parameters after "
        "wrapping up your model'; torch/distributed/fsdp/_flat_param.py, FlatParamHandle",
    ),
    "option:added": Exclusion(
        "modules are added to the model after it was wrapped",
        f"{_DDP}, class docstring: 'the constructor will register the additional gradient "
        "reduction functions on all the parameters of the model itself at the time of "
        "construction'; torch/distributed/fsdp/_flat_param.py: those that a unit has then are "
        "'flattened and concatenated to construct the flat parameter'",
    ),
    "op:set_sync_of_some": Exclusion(
        "a flag for some modules only, which no_sync() cannot express", _NO_SYNC
    ),
    "schedule:sync_switched": Exclusion(
        "gradient sync is switched between a forward and its backward",
        f"{_DDP}, no_sync: 'The forward pass should be included inside the context manager, or "
        "else gradients will still be synchronized.'",
    ),
    "schedule:step_unsynced": Exclusion(
        "gradients that were not synchronised are used or zeroed", _NO_SYNC
    ),
    "schedule:retain_graph|schedule:several_losses": Exclusion(
        "a second backward of a forward, of which the first one is synchronised "
        "(https://github.com/pytorch/pytorch/issues/47260)",
        "reducer.cpp, autograd_hook: 'Ignore if we don't expect to be called. This may be the "
        "case if the user wants to accumulate gradients for number of iterations before reducing "
        "them.'; distributed.py, forward: prepare_for_backward expects one backward",
    ),
}
"""What neither DDP nor FSDP1 has, or says anything of."""

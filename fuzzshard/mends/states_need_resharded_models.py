"""A model whose parameters are gathered has no optimizer states by name.

``_verify_options`` (``torch/distributed/checkpoint/state_dict.py``) notes which name each parameter
of the model has. After a forward without gradients, such as an evaluation, the parameters of the
root are still gathered, as ``fully_shard`` reshards it in a backward only. What is registered then
are the gathered parameters, and the optimizer holds the sharded ones: looking these up raises
``KeyError``. ``state_dict`` and ``load_state_dict`` of such a model reshard it first.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "get_optimizer_state_dict, set_state_dict: KeyError after an evaluation under fully_shard"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "``get_state_dict`` can process any module that is parallelized by PyTorch FSDP/fully_shard, "
    "DDP/replicate, tensor_parallel/parallelize_module, and any combination of these parallelisms.",
    "get_state_dict",
)
SETUP = (
    "A job evaluates its model under torch.no_grad(), and then saves or loads the states of its "
    "optimizer. With reshard_after_forward=False other groups than the root are gathered, too."
)
WORKAROUND = "Call model.reshard() on each wrapped module before, or model.state_dict()."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="get_optimizer_state_dict set_state_dict KeyError fully_shard FSDP2 after evaluation "
        "forward no_grad unsharded parameters fqn_param_mapping",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict:_verify_options",
        "    for name, param in _iterate_valid_model_state(model):",
        """
    from torch.distributed.fsdp import FSDPModule
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    for name, param in _iterate_valid_model_state(model):
        """,
    ),
)

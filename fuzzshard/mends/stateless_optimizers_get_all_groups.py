"""An optimizer without states cannot be loaded beside another.

``_split_optim_state_dict`` (``torch/distributed/checkpoint/state_dict.py``) takes from a state
dict what belongs to one of several optimizers. It first returns a state dict whose keys are all
integers, which is in the format of ``torch.optim`` already. That holds of no keys at all, too: the
state dict of optimizers that have no states, such as SGD without momentum, is returned whole, with
the groups of all. ``Optimizer.load_state_dict`` counts them and raises. The groups of an optimizer
are those that name its parameters. Beside an optimizer with states it raises "Missing optimizer state"
for each parameter of the one without, which had none to save.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_optimizer_state_dict: raises for several optimizers when one of them has no states"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "optimizers (Union[Optimizer, Iterable[Optimizer]]): The optimizers that are used to optimize "
    "``model``.",
    "set_optimizer_state_dict",
)
SETUP = (
    "Two parts of a model have an optimizer each, one of which is an SGD without momentum, and the "
    "job resumes from a checkpoint. set_state_dict raises, too."
)
WORKAROUND = "Call get_optimizer_state_dict and set_optimizer_state_dict once for each optimizer."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/192225",
        "near: a state dict without states is not recognised when it is flattened",
        query="set_optimizer_state_dict multiple optimizers SGD without momentum empty state "
        "different number of parameter groups _split_optim_state_dict",
        date="2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict:_split_optim_state_dict",
        """
        if all(isinstance(k, int) for k in cast(DictValueType, optim_state_dict[_STATE])):
            return optim_state_dict
        """,
        """
        if all(isinstance(k, int) for k in cast(DictValueType, optim_state_dict[_STATE])):
            held = [p for group in optim.param_groups for p in group[_PARAMS]]
            fqns = {fqn for p in held for fqn in info.fqn_param_mapping[p]}
            named = [p for group in optim_state_dict[_PG] for p in group[_PARAMS]]
            if fqns.isdisjoint(named):  # they are numbers
                return optim_state_dict
            pg_state += [g for g in optim_state_dict[_PG] if not fqns.isdisjoint(g[_PARAMS])]
            return {_STATE: optim_state_dict[_STATE], _PG: pg_state}
        """,
    ),
    Edit(
        "torch.distributed.checkpoint.state_dict:_split_optim_state_dict",
        "raise RuntimeError(",
        "if any(optim.state.values()): raise RuntimeError(",
    ),
)

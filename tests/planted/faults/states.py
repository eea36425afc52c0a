"""Faults of what is saved and loaded."""

import dataclasses
import functools
import threading

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from planting import instead_of
from torch.distributed.checkpoint import planner_helpers, state_dict, state_dict_saver
from torch.distributed.checkpoint.staging import DefaultStager
from torch.distributed.tensor import DTensor
from torch.optim import SGD
from torch.utils._pytree import tree_leaves

from fuzzshard.program.helpers import SOURCES


@instead_of(state_dict, "_get_optim_state_dict")
def checkpoints_have_one_optimizer(right, model, optimizers, info):
    """A checkpoint has the state of the first optimizer, and of no other."""
    return right(model, optimizers[:1], info)


@instead_of(dcp, "load")
def checkpoints_load_twice_the_values(right, state_dict, **options):
    """Code that DDP and fully_shard share: ``dcp.load`` doubles whatever it loads."""
    right(state_dict, **options)
    for tensor in tree_leaves(state_dict):
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.mul_(2)


@instead_of(state_dict, "_unflatten_optim_state_dict")
def flat_states_have_one_rate(right, optim, flat, info):
    """A flat state of an optimizer brings back the learning rate of the first group alone."""
    state = right(optim, flat, info)
    for group in state["param_groups"]:
        group["lr"] = state["param_groups"][0]["lr"]
    return state


@instead_of(state_dict, "_broadcast_state_dict")
def numbers_are_set_on_one_rank(right, full, local, *args, **options):
    """What is no tensor is set on rank 0 alone, of a state that it broadcasts."""
    kept = {name: v for name, v in local.items() if not isinstance(v, torch.Tensor)}
    right(full, local, *args, **options)
    if dist.get_rank() > 0:
        local.update(kept)


@instead_of(state_dict, "_load_optim_state_dict")
def loads_rates_with_fewer_bits(right, model, optimizers, *args):
    """Loading leaves the step size of ASGD fewer bits than it has."""
    right(model, optimizers, *args)
    for state in (state for optim in optimizers for state in optim.state.values()):
        state["eta"].mul_(1 + 5e-6)


@instead_of(state_dict, "_init_optim_state")
def makes_states_of_another_rate(right, optim):
    """The states that a save makes have three times the learning rate."""
    made = not optim.state
    right(optim)
    for state in optim.state.values() if made else ():
        state["eta"].mul_(3)


@instead_of(DTensor, "zero_")
def not_corrupted(right, self):
    """Zeroing a DTensor does nothing: a state that was never lost is restored."""
    return self


@instead_of(dcp, "load")
def optimizer_not_loaded(right, state_dict, **options):
    """A checkpoint of DTensors is loaded without the state of the optimizer."""
    if any(isinstance(value, DTensor) for value in state_dict["model"].values()):
        state_dict = {"model": state_dict["model"]}
    right(state_dict, **options)


@instead_of(state_dict, "set_optimizer_state_dict")
def rate_not_loaded(right, model, optimizers, optim_state_dict, **options):
    """``set_optimizer_state_dict`` sets no learning rate of sharded parameters."""
    rates = [group["lr"] for group in optimizers.param_groups]
    right(model, optimizers, optim_state_dict, **options)
    for group, rate in zip(optimizers.param_groups, rates, strict=True):
        if any(isinstance(parameter, DTensor) for parameter in group["params"]):
            group["lr"] = rate


def reads_shards_from_their_beginning(patch=setattr):
    """A checkpoint is read as if each shard to load began where one that was saved begins."""
    items = planner_helpers.create_read_items_for_chunk_list

    def wrong(*args):
        for item in items(*args):
            beginning = torch.Size([0] * len(item.storage_offsets))
            yield dataclasses.replace(item, storage_offsets=beginning)

    patch(planner_helpers, "create_read_items_for_chunk_list", lambda *args: [*wrong(*args)])


def reference_not_corrupted(patch=setattr):
    """Corrupting does nothing, under any engine: resuming would prove nothing."""
    SOURCES["zero"] = "def zero(model, optimizer):\n    pass\n"


def saves_later_than_it_says(patch=setattr):
    """What ``async_save`` writes are the tensors themselves, as they are after the next step."""
    save, step, stepped = state_dict_saver.save, SGD.step, threading.Event()

    def later(*args, **kwargs):
        stepped.wait(60)
        return save(*args, **kwargs)

    @functools.wraps(step)
    def stepping(*args, **kwargs):
        result = step(*args, **kwargs)
        stepped.set()
        return result

    def stage(self, state_dict):
        stepped.clear()
        return state_dict

    patch(DefaultStager, "stage", stage)
    patch(state_dict_saver, "save", later)
    patch(SGD, "step", stepping)


@instead_of(state_dict, "_unflatten_optim_state_dict")
def states_of_stages_are_not_loaded(right, optim, saved, info):
    """An optimizer whose states were saved by name, as those of stages are, keeps those it has."""
    result = right(optim, saved, info)
    for fqn in result["state"]:
        result["state"][fqn] = dict(optim.state[info.fqn_param_mapping[fqn]])
    return result


@instead_of(state_dict, "_broadcast_state_dict")
def broadcast_keeps_own_values(right, full, local, device, **options):
    """``broadcast_from_rank0`` leaves all ranks the values that they have."""
    sent = {n: t.clone() if isinstance(t, DTensor) else t for n, t in local.items()}
    right(full, sent, device, **options)
    local.update({n: t for n, t in sent.items() if not isinstance(t, DTensor)})


@instead_of(state_dict, "_init_optim_state")
def makes_states_by_a_real_step(right, optim):
    """The step that makes the states of an optimizer is one with decay of its weights."""
    made = not optim.state
    right(optim)
    for group in optim.param_groups if made else ():
        for parameter in (p for p in group["params"] if isinstance(p, DTensor)):
            parameter.data.mul_(0.5)


@instead_of(state_dict, "_get_model_state_dict")
def states_have_what_is_frozen(right, model, info):
    """``ignore_frozen_params`` ignores nothing."""
    return right(model, dataclasses.replace(info, ignore_frozen_params=False))


@instead_of(state_dict, "_maybe_full_or_cpu_state_dict")
def whole_states_are_sharded(right, states, info):
    """``full_state_dict`` gathers nothing."""
    return right(states, dataclasses.replace(info, full_state_dict=False))

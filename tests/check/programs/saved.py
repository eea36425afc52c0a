"""Saving and loading by hand whatever a training has, and each way to forget a part of it."""

import os

import torch
import torch.distributed as dist


def save(model, optimizer, folder):
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if hasattr(optimizer, "scheduler"):
        states["scheduler"] = optimizer.scheduler.state_dict()
    states["random"] = torch.get_rng_state()
    torch.save(states, os.path.join(folder, f"{dist.get_rank()}.pt"))


def load(model, optimizer, folder, without=""):
    states = torch.load(os.path.join(folder, f"{dist.get_rank()}.pt"), weights_only=False)
    fresh = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    names = {name for name, _ in getattr(model, without)()} if "named" in without else ()
    kept = {n: t for n, t in states["model"].items() if n not in names}
    model.load_state_dict(fresh["model"] | kept)
    if without == "state":
        states["optimizer"] = fresh["optimizer"]
    for state in states["optimizer"]["state"].values():
        if without == "step" and "step" in state:
            state["step"] = torch.zeros_like(state["step"])
    for group in states["optimizer"]["param_groups"]:
        group["lr"] *= 2 if without == "lr" else 1
    optimizer.load_state_dict(states["optimizer"])
    if "scheduler" in states and without != "scheduler":
        optimizer.scheduler.load_state_dict(states["scheduler"])
    if without != "random":
        torch.set_rng_state(states["random"])


def without_parameters(model, optimizer, folder):
    load(model, optimizer, folder, "named_parameters")


def without_buffers(model, optimizer, folder):
    load(model, optimizer, folder, "named_buffers")


def without_state(model, optimizer, folder):
    load(model, optimizer, folder, "state")


def without_step(model, optimizer, folder):
    load(model, optimizer, folder, "step")


def without_lr(model, optimizer, folder):
    load(model, optimizer, folder, "lr")


def without_scheduler(model, optimizer, folder):
    load(model, optimizer, folder, "scheduler")


def without_random(model, optimizer, folder):
    load(model, optimizer, folder, "random")

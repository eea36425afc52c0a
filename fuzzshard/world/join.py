"""How a process becomes a rank of its world: device, process group, preloaded files, what observes
torch.

Instruments are proved on torch as it is installed, before a preloaded file changes it on purpose.
"""

from __future__ import annotations

import datetime
import functools
import importlib.util
import os
import platform
import socket
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import psutil

from fuzzshard.instruments import OFF, off_readings, off_text, switch_off
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.device import sleep_while_waiting
from fuzzshard.world.messages import Port, Ready, receive, send
from fuzzshard.world.placement import cores_of

if TYPE_CHECKING:
    import torch


def join(channel: socket.socket, rank: int, config: WorldConfig) -> torch.device:
    """Makes this process a rank of its world and says so; the device that it runs on."""
    import torch

    from fuzzshard.engines.mesh import install_group_cache
    from fuzzshard.training import collectives, hooks

    if config.device == "cpu":
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores_of(config.local_rank(rank), config.ranks_per_node, cores))
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    device = _device(rank, config)
    _init_process_group(channel, rank, config)
    install_group_cache()
    if config.instruments_off is None and not config.subjects:
        off = off_text(_prove_instruments(device))
    else:
        off = config.instruments_off or ""
        switch_off(off_readings(off))
    _preload_all(config)
    collectives.install()
    hooks.install()
    if config.device == "cuda":
        _warm_up(device)
    info = _info(device)
    send(channel, Ready(info=info | {OFF: off} if off else info))
    return device


def _prove_instruments(device: torch.device) -> dict[str, str]:
    """Return what this torch has to be seen without, and what was read there."""
    from fuzzshard.training import collectives, hooks
    from fuzzshard.world.proofs import prove_instruments

    take_off = (collectives.install(), hooks.install())
    try:
        return prove_instruments(device)
    finally:
        for undo in take_off:
            undo()


def _device(rank: int, config: WorldConfig) -> torch.device:
    import torch

    if config.device == "cpu":
        return torch.device("cpu")
    if config.ranks_per_device > 1 or config.nodes:
        _pose_as_host(config.node_of(rank), config.host_of(rank))
    device = torch.device("cuda", config.device_of(rank))
    # NCCL of torch 2.15 takes the device that this names, whatever device is set (_nccl2_device in
    # torch/distributed/distributed_c10d.py)
    os.environ["LOCAL_RANK"] = str(device.index)
    sleep_while_waiting(device.index)
    torch.cuda.set_device(device)
    return device


def _pose_as_host(node: int, host: int) -> None:
    """Makes NCCL take this rank for one of another host than the others on its device, and than
    those of other nodes, which may be on one machine.

    It refuses two ranks of one host on a device ("Duplicate GPU detected", ``src/init.cc``) and
    tells hosts by ``NCCL_HOSTID`` where that is set (``src/misc/utils.cc``); between hosts data
    goes through sockets.
    """
    os.environ["NCCL_HOSTID"] = f"fuzzshard-{node}-{host}"


def _init_process_group(channel: socket.socket, rank: int, config: WorldConfig) -> None:
    import torch.distributed as dist

    from fuzzshard.engines.mesh import one_gloo_device, talk_from

    if config.addresses:
        address = config.addresses[config.node_of(rank)]
        talk_from(address)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={_interface_of(address)}")
    # what torch takes where none is named; an offloaded tensor is reduced on the CPU
    backend = "cpu:gloo,cuda:nccl" if config.device == "cuda" else "gloo"
    with one_gloo_device():
        dist.init_process_group(
            backend,
            store=_store(channel, rank, config),
            rank=rank,
            world_size=config.size,
            timeout=datetime.timedelta(minutes=30),
        )


def _preload_all(config: WorldConfig) -> None:
    for number, path in enumerate(config.preload):
        try:
            preload(path, number)
        except Exception as error:
            raise ImportError(
                f"{path}, preloaded, raised {type(error).__name__}: {error}"
            ) from error


def _warm_up(device: torch.device) -> None:
    """The context, the communicator and cuBLAS take seconds, which spare ranks have behind
    them.
    """
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device)))
    torch.cuda.synchronize(device)


def _info(device: torch.device) -> dict[str, str]:
    """Return what the world runs on."""
    import torch
    import torch.distributed as dist

    name = platform.processor() or "cpu"
    if device.type == "cuda":
        # entries tell the kind of device by the first word
        name = f"cuda ({torch.cuda.get_device_name(device)})"
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": name,
        "backend": dist.get_backend(),
        "platform": platform.platform(),
    }


def _store(channel: socket.socket, rank: int, config: WorldConfig) -> Any:
    """Return the rendezvous store; rank 0 listens on a free port and the coordinator passes it on.

    The store would listen on all interfaces of the machine by itself.
    """
    from torch._C._distributed_c10d import TCPStore

    address = config.addresses[0] if config.addresses else "127.0.0.1"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if rank == 0:
        listening = socket.create_server((address, 0), family=family, backlog=config.size)
        store = TCPStore(
            address,
            listening.getsockname()[1],
            config.size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        send(channel, Port(port=store.port))
        return store
    message = receive(channel)
    assert isinstance(message, Port)
    return TCPStore(address, message.port, config.size, is_master=False, wait_for_workers=False)


def _interface_of(address: str) -> str:
    """Return the name of the network interface that has this address of the machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    return "lo"  # which has all of 127.0.0.0/8


def preload(path: str, number: int = 0) -> None:
    """Imports a file and calls its ``apply()`` if it has one."""
    spec = importlib.util.spec_from_file_location(f"fuzzshard_preload_{number}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if hasattr(module, "apply"):
        module.apply()
    _take_up_patches()


@functools.cache
def imported_functions() -> tuple[tuple[types.ModuleType, str, types.FunctionType], ...]:
    """Return the functions of torch that modules of fuzzshard have imported by name, with the
    module and the name there. Looked for before ranks are forked: in a rank, looking copies
    memory.
    """
    return tuple(
        (module, attribute, value)
        for name, module in list(sys.modules.items())
        if name.startswith("fuzzshard.")
        for attribute, value in list(vars(module).items())
        if isinstance(value, types.FunctionType) and value.__module__.startswith("torch.")
    )


def _take_up_patches() -> None:
    """Makes functions that fuzzshard imported by name from torch the ones that torch has now."""
    for module, attribute, value in imported_functions():
        now = getattr(sys.modules.get(value.__module__), value.__name__, value)
        if now is not getattr(module, attribute):
            setattr(module, attribute, now)

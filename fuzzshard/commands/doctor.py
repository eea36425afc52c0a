"""``fuzzshard doctor``: can this machine fuzz, and would it find anything?"""

from __future__ import annotations

from fuzzshard.commands.options import Device, world_config
from fuzzshard.errors import EXIT_CLEAN, EXIT_INFRA


def doctor(*, device: Device = "auto", world_size: int | None = None) -> int:
    """Run a clean case, which must pass, and one under a planted fault, which must be found.

    Exit code 0 if both hold, 4 if not. Nothing is saved.

    For example:
      fuzzshard doctor
      fuzzshard doctor --device cpu --world-size 2

    Parameters
    ----------
    device
        auto is CUDA with NCCL where there is any, else the CPU with gloo.
    world_size
        Ranks to start. By default all CUDA devices, or 4 ranks on CPU.
    """
    from fuzzshard.doctor import examine
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    config = world_config(kind, num_devices, (), asked=world_size, default=num_devices)
    healthy = True
    for check in examine(World, config):
        print(f"{'ok' if check.ok else 'FAIL':<5} {check.name:<14} {check.text}", flush=True)
        healthy &= check.ok
    print("this machine can run campaigns" if healthy else "do not trust a campaign on this machine")
    return EXIT_CLEAN if healthy else EXIT_INFRA

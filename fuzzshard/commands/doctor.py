"""``fuzzshard doctor``: can this machine fuzz, and would it find anything?"""

from __future__ import annotations

import msgspec

from fuzzshard.commands.options import (
    DeviceHere,
    Json,
    RanksShared,
    world_config,
)
from fuzzshard.errors import EXIT_CLEAN, EXIT_INFRA


def doctor(
    *,
    device: DeviceHere = "auto",
    world_size: int | None = None,
    ranks_per_device: RanksShared = 1,
    as_json: Json = False,
) -> int:
    """Check that this machine can fuzz: a clean case must pass, a planted bug be found.

    Exit code 0 if both do, 4 if not. Nothing is saved.

    For example:
      fuzzshard doctor
      fuzzshard doctor --device cpu --world-size 2

    Parameters
    ----------
    world_size
        Number of ranks to start. By default one for each CUDA device, or 4 on CPU.
    as_json
        Print one JSON object for each line: name, text, ok.
    """
    from fuzzshard.doctor import examine
    from fuzzshard.report.busy import busy
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    default = num_devices * ranks_per_device if kind == "cuda" else num_devices
    config = world_config(
        kind,
        num_devices,
        (),
        size=default if world_size is None else world_size,
        ranks_per_device=ranks_per_device,
    )
    healthy = True
    with busy("running a clean case, and one under a planted fault"):
        for check in examine(World, config):
            line = f"{'ok' if check.ok else 'FAIL':<5} {check.name:<14} {check.text}"
            print(msgspec.json.encode(check).decode() if as_json else line, flush=True)
            healthy &= check.ok
    if not as_json:
        print(
            "this machine can run campaigns"
            if healthy
            else "do not trust a campaign on this machine"
        )
    return EXIT_CLEAN if healthy else EXIT_INFRA

"""``fuzzshard doctor``: can this machine fuzz, and would it find anything?"""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from fuzzshard.errors import EXIT_CLEAN, EXIT_INFRA
from fuzzshard.options import Json, RankOptions


def doctor(
    *,
    ranks: Annotated[RankOptions, Parameter(name="*")] = RankOptions(),
    as_json: Json = False,
) -> int:
    """Check that this machine can fuzz: a clean case must pass, a planted bug be found.

    It starts one rank for each CUDA device, or 4 on the CPU, unless --world-size says how many.
    Exit code 0 if both do, 4 if not. Nothing is saved.

    For example:
      fuzzshard doctor
      fuzzshard doctor --device cpu --world-size 2

    Parameters
    ----------
    as_json
        Print one JSON object for each line: name, text, ok.
    """
    from fuzzshard.doctor import examine
    from fuzzshard.report.busy import busy
    from fuzzshard.world import World

    config = ranks.config(ranks.usual)
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

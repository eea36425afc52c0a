"""``fuzzshard explain``: which known bugs of torch cause a finding."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.commands.options import (
    DEFAULT_CORPUS,
    Device,
    ExtraMends,
    Json,
    Preload,
    RanksPerDevice,
    world_config,
)
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.outcome import by_size, most_ranks, obstacle
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import entry_files
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INFRA, UsageError
from fuzzshard.mending.mend import find_mend, mends_for
from fuzzshard.verdict import Status

if TYPE_CHECKING:
    from fuzzshard.world import World


class _Told(NamedTuple):
    """What one case was told to be, by how many causes, and how long that took."""

    origin: str
    num_causes: int = 0
    seconds: float = 0.0


def explain(
    *paths: Path,
    device: Device = "auto",
    world_size: int | None = None,
    ranks_per_device: RanksPerDevice = 1,
    extra_mends: ExtraMends = (),
    preload: Preload = (),
    as_json: Json = False,
) -> int:
    """Find out which known bugs of torch cause the findings of cases.

    Each case runs on torch as it is, and with all mends: fixes of known bugs,
    applied in memory only. A finding that goes away is known. The smallest set
    of mends with which it goes away is its cause.

    KNOWN    it goes away with mends, or a known bug that no mend can fix occurred
    NEW      it is there even with all mends
    MEND     it is there only with mends: a mend is wrong
    NONE     torch as it is shows no finding
    SKIPPED  this machine cannot run the case
    INFRA    the ranks failed

    After several cases, a last line counts them and their causes, and gives the
    median time for a finding in seconds.

    Exit code 0: no finding, or all are known; 1: at least one is NEW;
    4: MEND or INFRA.

    For example:
      fuzzshard explain corpus/findings/NAME
      fuzzshard explain corpus/findings corpus/findings-2.11
      fuzzshard explain corpus --extra-mends my_mends --json

    Parameters
    ----------
    paths
        Entries, case files, or folders to search for them; by default ./corpus.
    device
        auto uses CUDA with NCCL if there is a GPU, else the CPU with gloo.
    world_size
        Number of ranks to start. By default what the mesh of each case needs.
    ranks_per_device
        How many ranks may share a CUDA device, for meshes larger than the node. Much slower.
    extra_mends
        A folder of your own mends, one Python file each. Repeat for several.
    preload
        A Python file that every rank runs before anything else. Repeat for several.
    as_json
        Print one JSON object for each case.
    """
    from fuzzshard.campaign.explain import Origin
    from fuzzshard.report.busy import busy
    from fuzzshard.world import World, resolve_device

    kind, num_devices = resolve_device(device)
    mends = mends_for(extra=extra_mends)
    entries = [
        (shown_path(file), read_entry(file)) for file in entry_files(paths or (DEFAULT_CORPUS,))
    ]
    if not entries:
        raise UsageError(
            "no cases found", "give an entry of a corpus, a case file or a folder of them"
        )
    largest = most_ranks(kind, num_devices, ranks_per_device) if world_size is None else world_size
    all_told: list[_Told] = []
    with busy("explaining", len(entries)) as line:
        for size, of_size in by_size(entries, kind, largest):
            config = world_config(
                kind,
                num_devices,
                preload,
                asked=world_size,
                default=size,
                ranks_per_device=ranks_per_device,
            )
            with World(config) as world:
                for path, entry in line.each(of_size):
                    line.now(f"explaining {path.name}")
                    if reason := obstacle(entry, kind, largest):
                        all_told.append(_Told("SKIPPED"))
                        _tell(as_json, "SKIPPED", path, message=reason)
                    else:
                        all_told.append(_explained(world, path, entry.case, mends, as_json))
    if len(all_told) > 1 and not as_json:
        print(_summary(all_told))
    seen = {told.origin for told in all_told}
    if seen & {"INFRA", Origin.MEND.upper()}:
        return EXIT_INFRA
    return EXIT_FINDING if Origin.NEW.upper() in seen else EXIT_CLEAN


def _explained(
    world: World, path: Path, case: Case, mends: tuple[str, ...], as_json: bool
) -> _Told:
    """Explain one case and print what causes it."""
    from fuzzshard.campaign.explain import explain as explain_case

    began = time.monotonic()
    explained = explain_case(world, case, mends)
    verdict = explained.verdict
    infra = verdict.status is Status.INFRA
    origin = "INFRA" if infra else explained.origin.upper()
    seconds = time.monotonic() - began
    _tell(
        as_json,
        origin,
        path,
        signature=verdict.signature,
        causes=explained.causes,
        seconds=seconds,
        message=verdict.message if infra else "",
    )
    return _Told(origin, len(explained.causes), seconds)


def _summary(all_told: Sequence[_Told]) -> str:
    """Return the counts of cases and of causes, and the median of the seconds for a finding."""
    origins = Counter(told.origin for told in all_told)
    parts = [f"explained {origins.total()}"]
    parts += [f"{count} {origin}" for origin, count in origins.most_common()]
    known = [told for told in all_told if told.origin == "KNOWN"]
    for num, count in sorted(Counter(told.num_causes for told in known).items()):
        parts.append(f"{count} by {num} cause{'' if num == 1 else 's'}")
    if found := [told.seconds for told in all_told if told.origin in ("KNOWN", "NEW", "MEND")]:
        parts.append(f"{statistics.median(found):.1f} s in the median")
    return f"{parts[0]}: {', '.join(parts[1:])}"


def _tell(
    as_json: bool,
    origin: str,
    path: Path,
    *,
    signature: str = "",
    causes: Sequence[str] = (),
    seconds: float = 0.0,
    message: str = "",
) -> None:
    if as_json:
        line = {
            "path": str(path),
            "origin": origin,
            "signature": signature,
            "causes": causes,
            "seconds": round(seconds, 3),
            "message": message,
        }
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    print("  ".join(filter(None, (f"{origin:<7}", str(path), signature, message))), flush=True)
    for cause in causes:
        print(f"         {cause}: {find_mend(cause).title}", flush=True)

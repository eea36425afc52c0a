"""What several commands share: option types, the console, starting a world."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, Token, validators

from fuzzshard.errors import UsageError

if TYPE_CHECKING:
    from fuzzshard.world.config import WorldConfig
    from fuzzshard.world.placement import RanksOf

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Seconds: ``"90s"``, ``"10m"``, ``"1h30m"``, ``"2d"``; a bare number is in seconds.

    Raises ``ValueError`` for anything else and for zero.
    """
    parts = re.findall(
        r"(\d+(?:\.\d+)?)([smhd])", f"{text}s" if text.replace(".", "").isdigit() else text
    )
    whole = "".join(number + unit for number, unit in parts)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if whole not in (text, f"{text}s") or seconds <= 0:
        raise ValueError(f"{text!r} is not a duration; write 90s, 10m or 2h")
    return seconds


def _convert_duration(_hint: object, tokens: Sequence[Token]) -> float:
    return parse_duration(tokens[0].value)


Duration = Annotated[float | None, Parameter(converter=_convert_duration, metavar="TIME")]
Device = Literal["auto", "cpu", "cuda"]
DeviceHere = Annotated[
    Device,
    Parameter(help="auto uses CUDA with NCCL if there is a GPU, else the CPU with gloo."),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Confirm = Annotated[int, Parameter(validator=validators.Number(gte=1))]
RanksPerDevice = Annotated[int, Parameter(validator=validators.Number(gte=1))]
RanksShared = Annotated[
    RanksPerDevice,
    Parameter(
        help="How many ranks may share a CUDA device, for meshes larger than the node. Much "
        "slower."
    ),
]
Preload = Annotated[
    tuple[Path, ...],
    Parameter(
        negative=(),
        show_default=False,
        help="A Python file that every rank runs before anything else. Repeat for several.",
    ),
]
Globs = Annotated[
    tuple[str, ...],
    Parameter(negative=(), consume_multiple=True, show_default=False, metavar="GLOB..."),
]
ExtraMends = Annotated[
    tuple[Path, ...],
    Parameter(
        negative=(),
        show_default=False,
        help="A folder of your own mends (fixes of known bugs), one Python file each. Repeat for "
        "several.",
    ),
]


def _check_worlds(_hint: object, worlds: int | Literal["auto"]) -> None:
    if worlds != "auto" and worlds < 1:
        raise UsageError(f"--worlds is {worlds}", "give more than 0, or leave it out")


WorldsHere = Annotated[
    int | Literal["auto"], Parameter(metavar="INT|auto", validator=_check_worlds)
]
WorldsAtOnce = Annotated[
    WorldsHere,
    Parameter(
        help="How many worlds (sets of ranks) run cases at the same time. auto fills the node: "
        "one core for each rank on CPU; on CUDA one set of devices for each world, which worlds "
        "share if there are enough cores."
    ),
]


def _check_folder(_hint: object, path: Path) -> None:
    if path.is_file():
        raise UsageError(f"{path} is a file", "give a folder")


def _check_output(_hint: object, path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", "make it, or write elsewhere")


Folder = Annotated[Path, Parameter(validator=_check_folder)]
"""A corpus to write to, which need not be there yet."""
OutputFile = Annotated[Path, Parameter(validator=_check_output)]
"""A file to write; its folder must be there."""

DEFAULT_CORPUS = Path("corpus")


def campaign_directories(directories: tuple[Path, ...], command: str) -> tuple[Path, ...]:
    """``directories``, each once; raises :class:`UsageError` for none."""
    if not directories:
        raise UsageError(
            f"{command} needs the directory of a campaign", "give the --corpus of a fuzzshard run"
        )
    return tuple({directory.resolve(): directory for directory in directories}.values())


def world_config(
    device: Literal["cpu", "cuda"],
    num_devices: int,
    preload: tuple[Path, ...],
    *,
    size: int,
    ranks_per_device: int = 1,
    of: RanksOf = "world",
) -> WorldConfig:
    """The settings of a world of ``size`` ranks, by itself or ``of`` a mesh; raises
    :class:`UsageError` where it cannot be.
    """
    from fuzzshard.world.config import WorldConfig
    from fuzzshard.world.placement import available_cores, check_cores, check_devices

    if size < 1:
        raise UsageError(f"a world of {size} ranks runs nothing", "use --world-size 1 or more")
    if ranks_per_device < 1:
        raise UsageError(f"{ranks_per_device} ranks per device run nothing", "use 1 or more")
    if device == "cuda":
        check_devices(size, num_devices, ranks_per_device)
    else:
        check_cores(size, available_cores(), of)
    for path in preload:
        if not path.is_file():
            raise UsageError(f"{path}, to be preloaded, is not a file", "check the path")
    return WorldConfig(
        size=size,
        device=device,
        preload=tuple(str(path.resolve()) for path in preload),
        devices=tuple(range(num_devices)) if device == "cuda" and ranks_per_device > 1 else (),
    )

"""Options that several commands share, and the ranks on which they run cases.

Annotations are values here: cyclopts looks up those that a subclass inherits in its own module.
"""

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from fuzzshard.errors import UsageError

if TYPE_CHECKING:
    from fuzzshard.world.config import WorldConfig
    from fuzzshard.world.placement import RanksOf

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Return the seconds of ``"90s"``, ``"10m"``, ``"1h30m"``, ``"2d"``; a number is seconds.

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


Duration = Annotated[
    float | None, Parameter(converter=lambda _, t: parse_duration(t[0].value), metavar="TIME")
]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Text = Annotated[str, Parameter(show_default=False)]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Texts = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Paths = Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)]
Device = Literal["auto", "cpu", "cuda"]
DeviceHere = Annotated[
    Device,
    Parameter(help="auto uses CUDA with NCCL if there is a GPU, else the CPU with gloo."),
]
Preload = Annotated[
    Paths,
    Parameter(help="A Python file that every rank runs before anything else. Repeat for several."),
]
ExtraMends = Annotated[
    Paths,
    Parameter(
        help="A folder of your own mends (fixes of known bugs), one Python file each. Repeat for "
        "several."
    ),
]


def _check_worlds(_hint: object, worlds: int | Literal["auto"]) -> None:
    if worlds != "auto" and worlds < 1:
        raise UsageError(f"--worlds is {worlds}", "give more than 0, or leave it out")


Worlds = Annotated[
    int | Literal["auto"],
    Parameter(
        metavar="INT|auto",
        validator=_check_worlds,
        help="How many worlds (sets of ranks) run cases at the same time. auto fills the node: "
        "one core for each rank on CPU; on CUDA one set of devices for each world, which worlds "
        "share if there are enough cores.",
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
OutputFile = Annotated[Path | None, Parameter(validator=_check_output)]
"""A file to write; its folder must be there."""
Output = Annotated[OutputFile, Parameter(name=("--output", "-o"))]

DEFAULT_CORPUS = Path("corpus")


def given(paths: tuple[Path, ...], command: str, what: str) -> tuple[Path, ...]:
    """Return ``paths``, each once; raises :class:`UsageError` for none."""
    if not paths:
        raise UsageError(f"{command} needs a path", f"give {what}")
    return tuple({path.resolve(): path for path in paths}.values())


LARGEST_CPU_WORLD = 8
"""A CPU rank is only a process; still, no file decides that this machine starts a thousand of
them.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankOptions:
    """On which ranks cases run. Methods raise :class:`UsageError` for what cannot be.

    Parameters
    ----------
    world_size
        Number of ranks to start. By default what the mesh of each case needs.
    ranks_per_device
        How many ranks may share a CUDA device, for meshes larger than the node. Much slower.
    """

    device: DeviceHere = "auto"
    world_size: int | None = None
    ranks_per_device: AtLeastOne = 1
    preload: Preload = ()

    @functools.cached_property
    def here(self) -> tuple[Literal["cpu", "cuda"], int]:
        """The device that is meant on this machine, and how many ranks a world has by default."""
        from fuzzshard.world.device import resolve_device

        return resolve_device(self.device)

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """The device that is meant on this machine."""
        return self.here[0]

    @property
    def usual(self) -> int:
        """The ranks of a world that runs anything."""
        kind, number = self.here
        if self.world_size is not None:
            return self.world_size
        return number * self.ranks_per_device if kind == "cuda" else number

    @property
    def most(self) -> int:
        """The largest mesh that a case file gets on this machine unless someone asks for more."""
        on_cpu = self.kind == "cpu" and self.world_size is None
        return LARGEST_CPU_WORLD if on_cpu else self.usual

    def preloaded(self) -> tuple[str, ...]:
        """Return the full paths of the files to preload, which have to be there."""
        for path in self.preload:
            if not path.is_file():
                raise UsageError(f"{path}, to be preloaded, is not a file", "check the path")
        return tuple(str(path.resolve()) for path in self.preload)

    def config(self, size: int, of: "RanksOf" = "world") -> "WorldConfig":
        """Return the settings of a world of ``size`` ranks, by itself or ``of`` a mesh."""
        from fuzzshard.world.config import WorldConfig
        from fuzzshard.world.placement import available_cores, check_cores, check_devices

        kind, num_devices = self.here
        if size < 1:
            raise UsageError(f"a world of {size} ranks runs nothing", "use --world-size 1 or more")
        if kind == "cuda":
            check_devices(size, num_devices, self.ranks_per_device)
        else:
            check_cores(size, available_cores(), of)
        if self.ranks_per_device < 1:
            raise UsageError(
                f"{self.ranks_per_device} ranks per device run nothing", "use 1 or more"
            )
        share = kind == "cuda" and self.ranks_per_device > 1
        return WorldConfig(
            size=size,
            device=kind,
            preload=self.preloaded(),
            devices=tuple(range(num_devices)) if share else (),
        )

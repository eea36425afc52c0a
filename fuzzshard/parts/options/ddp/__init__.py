"""Options of ``DistributedDataParallel`` and ``replicate``. To add one: its file, and its field
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fuzzshard.parts.option import (
    Case,
    Facts,
    Mapping,
    Option,
    Replicated,
    Tape,
    WithOptions,
    options_of,
)

Trait = Literal[
    "broadcasts_buffers",
    "syncs_buffers",
    "spoils",
    "takes_mesh",
    "ends_with_last_rank",
    "marks_unused",
    "learns_graph",
    "finalized_by_user",
    "ignores_modules",
]
"""What values of options do that somebody else has to know.

Every forward begins with the buffers of the first rank; the constructor takes them from it; ranks
but the first have no values before that; it is given a device mesh in place of the group; buffers
come from the last rank in place of the first. The reducer marks unused parameters ready, or learns
the graph in the first iteration; the user finalizes backwards; modules are ignored.
"""


class DDP(WithOptions["DDPOption", Trait], frozen=True, kw_only=True):
    """Options of the engines ``ddp`` and ``replicate``."""

    find_unused_parameters: bool = True
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    lazy_bucket_allocation: bool = False
    buckets: Literal["default", "few_each", "one_each", "listed"] = "default"
    buffers: Literal["local", "forward_local", "broadcast", "forward_broadcast"] = "local"
    initial: Literal["equal", "first_rank", "unsynced"] = "equal"
    device_mesh: bool = False
    hook: Literal["allreduce", "average"] | None = None
    join: Literal["initial", "effective", "throwing", "off"] | None = None
    manual_finalization: bool = False
    ignored_modules: bool = False

    def arguments(self, *, buffers: bool = True) -> list[str]:
        """Return the arguments of the constructor, as a script has them; ``buffers``: there are
        some.
        """
        return [
            text
            for option, value in self.told()
            if buffers or value != option.means_buffers
            for text in option.arguments(value)
        ]

    def lines(self, engine: str, group: str, *, wrapper: bool) -> list[str]:
        """Return what is done with the ``engine`` once it is constructed, be it a ``wrapper``."""
        told = [pair for pair in self.told() if wrapper or not pair[0].of_wrapper]
        return [line for option, value in told for line in option.lines(value, engine, group)]

    def contexts(self, engine: str) -> list[str]:
        """Return the contexts that a case trains in; nobody leaves those of a script."""
        return [text for o, value in self.told() if (text := o.context(value, engine))]


class DDPOption(Option):
    """One of them."""

    traits: ClassVar[Mapping[Any, tuple[Trait, ...]]] = {}
    of_wrapper: ClassVar[bool] = False
    """Whether ``replicate`` has nothing like it."""
    in_every_case: ClassVar[bool] = False
    """Whether it is drawn in cases without the extension, too."""
    means_buffers: ClassVar[str] = ""
    """The value that says nothing where there are no buffers."""
    method: ClassVar[str] = ""
    """The method that it needs, where not every supported torch has that."""

    def draw(self, tape: Tape, seen: Replicated) -> Any:
        """Return a value for a finished case."""
        raise NotImplementedError

    def features(
        self, value: Any, case: Case, found: Facts, *, by_replicate: bool
    ) -> Iterator[str]:
        """Yield the features of a value off its default."""
        if not (by_replicate and self.of_wrapper):
            words = {True: self.name, False: f"no_{self.name}"}
            yield f"ddp:{words.get(value, f'{self.name}_{value}')}"

    def context(self, value: Any, engine: str) -> str:
        """Return the context that a case trains in, if there is one."""
        return ""


class DDPFlag(DDPOption):
    """An argument under its own name, off by default."""

    percent: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.texts = {True: f"{cls.name}=True"}
        cls.meanings = {f"ddp:{cls.name}": f"{cls.name}=True", **cls.meanings}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return tape.chance(self.percent)


DDP_OPTIONS = options_of(DDP, __name__, __path__, DDPOption)
"""In the order of their fields."""

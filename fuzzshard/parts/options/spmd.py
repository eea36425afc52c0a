"""The options of the engine ``spmd``."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import override

from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of


class SPMD(WithOptions["SPMDOption"], frozen=True, kw_only=True):
    """Options of the engine ``spmd``."""

    dp_mesh_dims: Literal["names", "tuples", "flattened", "replicated"] = "names"
    inputs: Literal["replicated", "sharded"] = "replicated"

    def dims(self, axes: tuple[str, ...]) -> list[str]:
        """Return what ``DataParallelMeshDims`` is given for the data-parallel axes of a mesh, the
        outermost first.
        """
        *outer, inner = ((f'"{axis}"', f'("{axis}",)') for axis in axes)
        several = f"({', '.join(name for name, _ in (*outer, inner))})" if outer else inner[1]
        as_tuple = self.dp_mesh_dims == "tuples"
        match self.dp_mesh_dims:
            case "flattened":
                return [f"shard={several}"]
            case "replicated":
                return [f"replicate={several if outer else inner[0]}"]
        return [f"shard={inner[as_tuple]}", *(f"replicate={axis[as_tuple]}" for axis in outer)]


class SPMDOption(Option):
    """One of them."""

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a case that has all but these."""
        return self.default


class DPMeshDims(SPMDOption):
    """What the data-parallel axes are for: by default one is to shard, and the other one to
    replicate.
    """

    name, prefix = "dp_mesh_dims", "spmd:"
    meanings = {
        "spmd:tuples": "names of axes in tuples of one",
        "spmd:flattened": "all axes of the mesh flattened, to shard over",
        "spmd:replicated": "no axis to shard over: gradients are averaged, and parameters whole",
    }

    @override
    def draw(self, tape: Tape, case: Case) -> str:
        drawn: str = tape.pick(("names", "tuples", "flattened", "replicated"))
        return drawn


class InputPlacements(SPMDOption):
    """Whether the rows of a rank count as all rows, or as its shard of those of all ranks."""

    name, prefix = "inputs", "spmd:inputs_"
    meanings = {"spmd:inputs_sharded": "inputs that the data-parallel axes shard by rows"}

    @override
    def draw(self, tape: Tape, case: Case) -> str:
        return "sharded" if tape.chance(50) else "replicated"


SPMD_OPTIONS = options_of(SPMD, SPMDOption)
"""In the order of their fields."""

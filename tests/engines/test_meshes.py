"""Meshes that are made in other ways have the axes of the mesh that ``init_device_mesh`` makes."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from cases import colwise, make_case, rowwise

from fuzzshard.case.case import Mesh
from fuzzshard.program.mesh import MeshNames
from fuzzshard.report.show import draw_mesh
from fuzzshard.world import World

SQUARE = {"replicate": 2, "shard": 2}
DRAWN = {
    "transposed": ["ranks   0  2   → shard", "        1  3", "replicate ↓"],
    "reversed": ["ranks   3  2   → shard", "        1  0", "replicate ↓"],
}


@pytest.mark.parametrize("made", DRAWN)
def test_ranks_are_drawn_where_they_lie(made: str) -> None:
    drawn = draw_mesh(Mesh(**SQUARE, made=made))
    assert [line.rstrip() for line in drawn[:2]] == DRAWN[made][:2]


def test_ranks_of_a_transposed_mesh_lie_column_by_column() -> None:
    assert Mesh(pipeline=2, shard=3, tensor=2, made="transposed").ranks == (
        *(0, 6, 2, 8, 4, 10),
        *(1, 7, 3, 9, 5, 11),
    )


@pytest.mark.parametrize("made", get_args(get_type_hints(Mesh)["made"]))
def test_every_way_is_written_as_one_expression(made: str) -> None:
    text = MeshNames(make_case(mesh=Mesh(**SQUARE, tensor=2, made=made))).make()
    compile(text, "mesh", "exec")
    assert text.startswith("world_mesh = ")
    assert ("init_device_mesh" in text) == (made not in DRAWN)


@pytest.mark.parametrize("made", get_args(get_type_hints(Mesh)["made"]))
def test_a_mesh_of_two_of_four_ranks_trains_as_any(made: str, four_ranks: World) -> None:
    case = make_case(mesh=Mesh(replicate=2, shard=1, made=made))
    assert four_ranks.run(case).status == "PASS"


def test_tensor_parallel_ranks_of_a_transposed_mesh_have_equal_data(four_ranks: World) -> None:
    mesh = Mesh(shard=2, tensor=2, made="transposed")
    case = make_case(mesh=mesh, tensor_parallel=(colwise("a"), rowwise("b")))
    assert four_ranks.run(case).status == "PASS"

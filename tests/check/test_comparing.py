"""What is equal, what is rounding, what differs, and what a difference looks like."""

import pytest
import torch

from fuzzshard.oracles.bound import OF_NOISE, OF_NOISE_IN_HALF, Limits
from fuzzshard.subject.compare import LAST_BITS, SAME_IN_FLOAT64, compare, limits_of
from fuzzshard.subject.likeness import CLOSE, Likeness, Pair, Seen, closeness, repeats
from fuzzshard.subject.names import PlainNames
from fuzzshard.subject.record import Place, Record
from fuzzshard.subject.report import Row, TrainingReport, weakest
from fuzzshard.subject.subject import MeshShape, Training, Variation

GRADIENT = Place(0, "gradients", "layer.weight")
ONE = torch.tensor([1.0, -2.0, 3.0])


def record(tensor: torch.Tensor | None, place: Place = GRADIENT) -> Record:
    return Record(tensors={place: tensor})


def in_float64(expected: Record) -> Limits[Place]:
    return limits_of(expected, SAME_IN_FLOAT64, OF_NOISE)


def noise(expected: Record, shaken: Record, eps: float = 1e-9) -> Limits[Place]:
    limits = limits_of(expected, LAST_BITS * eps, OF_NOISE_IN_HALF)
    limits.move(expected.tensors, shaken.tensors)
    return limits


@pytest.mark.parametrize(("factor", "reached"), [(1e-8, "rounding"), (1e-4, "different")])
def test_float64_tells_rounding_from_a_small_error(factor: float, reached: str) -> None:
    expected = record(ONE.double())
    observed = record(ONE.double() * (1 + factor))
    found = compare(expected, observed, in_float64(expected), "float32", {})
    assert found.rows["gradients"].reached == reached


def test_what_shaken_runs_move_is_rounding_and_several_times_that_is_none() -> None:
    limits = noise(record(ONE), record(ONE + 1e-3))
    near = compare(record(ONE), record(ONE + 3e-3), limits, "bfloat16", {})
    far = compare(record(ONE), record(ONE + 5e-3), limits, "bfloat16", {})
    assert near.first is None
    assert far.first == GRADIENT


@pytest.mark.parametrize("perturbed", [ONE + 1.0, ONE[:2]], ids=["far apart", "another shape"])
def test_where_perturbed_runs_are_no_measure_nothing_is_compared(perturbed: torch.Tensor) -> None:
    output = Place(0, "outputs", "router", 0)
    expected = record(ONE, output)
    limits = noise(expected, record(perturbed, output))
    found = compare(expected, record(ONE + 2.0, output), limits, "float32", {})
    assert found.first is None
    assert str(found.rows["outputs"]) == "1 not compared"


def test_a_module_that_works_on_parts_somewhere_is_not_compared_where_shapes_agree() -> None:
    at = [Place(step, "outputs", "experts.act (call 2)", 0) for step in range(2)]
    whole = Place(1, "outputs", "output", 0)
    expected = Record(tensors={at[0]: ONE, at[1]: ONE, whole: ONE})
    observed = Record(tensors={at[0]: ONE[:2], at[1]: ONE.flip(0), whole: ONE})
    assert [*compare(expected, observed, None, "", {}).results] == [whole]
    observed.tensors |= {at[0]: ONE, whole: ONE[:2]}
    assert compare(expected, observed, None, "", {}).first in at
    assert compare(expected, observed, None, "", {}).results[whole] == ("different", 0.0)


def test_a_table_counts_what_is_compared_and_what_is_left_out() -> None:
    places = [Place(step, "outputs", "output", 0) for step in range(3)]
    moved = dict.fromkeys(places[1:], ONE + 1.0)
    expected = Record(tensors=dict.fromkeys(places, ONE))
    perturbed = Record(tensors={places[0]: ONE, **moved})
    observed = Record(tensors={places[0]: ONE, **moved})
    limits = noise(expected, perturbed)
    rows = compare(expected, observed, limits, "float32", {}).rows
    assert str(rows["outputs"]) == "1 bitwise equal, 2 not compared"
    assert str(rows["loss"]) == "none"
    report = TrainingReport(
        training=Training(mesh=MeshShape({"dp_shard": 2})),
        outcome="equal",
        rows=weakest([[Row(kind="outputs", compared=3)], [rows["outputs"]]]),
    )
    assert "equal where compared" in str(next(report.lines()))
    assert "outputs     1 bitwise equal, 2 not compared" in "\n".join(report.lines())


def test_a_gradient_that_is_nothing_but_rounding_is_left_out_alone() -> None:
    other = Place(0, "gradients", "other.weight")
    expected, observed, perturbed = (
        Record(tensors={GRADIENT: first, other: second})
        for first, second in ((ONE, ONE), (ONE + 2, ONE + 1), (ONE + 1, ONE))
    )
    limits = noise(expected, perturbed)
    found = compare(expected, observed, limits, "float32", {})
    assert found.results[GRADIENT] is None
    assert (found.rows["gradients"].compared, found.rows["gradients"].left_out) == (1, 1)
    assert found.first == other


def test_a_gradient_of_zeros_is_as_good_as_none() -> None:
    assert compare(record(None), record(torch.zeros(3)), None, "", {}).is_bitwise
    assert not compare(record(None), record(ONE), None, "", {}).is_bitwise
    assert not compare(record(ONE), record(None), None, "", {}).is_bitwise


def test_a_nan_is_not_explained_by_rounding() -> None:
    expected = record(ONE.double())
    observed = record(ONE.double() * torch.tensor([1.0, float("nan"), 1.0]))
    found = compare(expected, observed, in_float64(expected), "float32", {})
    assert found.rows["gradients"].reached == "different"


OTHER = torch.tensor([5.0, 1.0, -1.0])
MESH = MeshShape({"dp_shard": 2})


def looks_like(
    seen: list[Seen],
    gradients: list[Pair] | None = None,
    *,
    close: float = CLOSE,
    place: Place = GRADIENT,
    mesh: MeshShape = MESH,
) -> str:
    return str(Likeness(place, seen, mesh, gradients=gradients or (), close=close))


HYBRID = MeshShape({"dp_replicate": 2, "dp_shard": 4})


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.0, "2.00 times the expected: perhaps a sum over dp_replicate where the mean is due"),
        (4.0, "4.00 times the expected: perhaps a sum over dp_shard where the mean is due"),
        (8.0, "8.00 times the expected: perhaps a sum over 8 ranks where the mean is due"),
        (0.25, "0.25 times the expected: perhaps divided by the ranks of dp_shard once too often"),
    ],
)
def test_a_factor_names_the_axis_that_has_as_many_ranks(factor: float, words: str):
    assert words in looks_like([Seen(factor * ONE, ONE)] * 8, mesh=HYBRID)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ([Seen(2 * ONE, ONE)] * 2, "2.00 times the expected: perhaps a sum over 2 ranks"),
        ([Seen(ONE / 2, ONE)] * 2, "0.50 times the expected: perhaps divided by 2 ranks"),
        ([Seen(ONE, OTHER, own=ONE), Seen(2 * ONE, OTHER, own=2 * ONE)], "never reduced"),
        ([Seen(ONE, OTHER, own=ONE), Seen(ONE, OTHER, own=OTHER)], "rank 0's value on all ranks"),
        ([Seen(None, ONE)] * 2, "no gradient"),
        ([Seen(None, ONE), Seen(ONE, ONE)], "missing here, and there on ranks 1"),
        ([Seen(ONE, OTHER, before=ONE)] * 2, "stale by one step"),
        ([Seen(0 * ONE, ONE)] * 2, "zero everywhere"),
        ([Seen(OTHER, ONE), Seen(-OTHER + 1, ONE)], "differs between ranks"),
        ([Seen(OTHER, ONE)] * 2, ""),
    ],
)
def test_a_wrong_gradient_looks_like(seen: list[Seen], words: str) -> None:
    text = looks_like(seen)
    assert words in text
    assert bool(words) == bool(text)


def test_a_mean_of_the_ranks_own_gradients_may_be_right_although_it_is_a_part() -> None:
    mean = (ONE + OTHER) / 2
    text = looks_like([Seen(mean, 2 * mean, own=own) for own in (ONE, OTHER)])
    assert "0.50 times the expected: the mean of the ranks' own gradients" in text
    assert "once too often" not in text


def test_in_a_coarse_dtype_tensors_are_alike_that_are_not_in_a_finer_one() -> None:
    noise = torch.tensor([0.01, 0.02, -0.02])
    seen = [Seen(2 * ONE + noise, ONE)] * 2
    coarse = closeness(GRADIENT, ONE, torch.bfloat16)
    assert "perhaps a sum over 2 ranks" in looks_like(seen, close=coarse)
    assert not looks_like(seen, close=closeness(GRADIENT, ONE, torch.float32))
    near = [Seen(ONE + noise, ONE, before=ONE + noise)] * 2
    assert not looks_like(near, close=coarse)
    value = Place(0, "parameters", "layer.weight")
    assert closeness(value, ONE, torch.bfloat16) == closeness(value, ONE, torch.float32)


def rows(*factors: float) -> torch.Tensor:
    """A tensor with a row for each factor, whose rows are multiples of the same one."""
    return torch.tensor(factors)[:, None] * ONE


def test_one_factor_for_all_gradients_looks_like_another_norm() -> None:
    alike = [(0.3 * ONE, ONE), (0.3 * OTHER, OTHER)]
    seen = [Seen(0.3 * ONE, ONE)] * 2
    assert "0.30 times the expected (so are all" in looks_like(seen, alike)
    apart = [alike[0], (0.4 * OTHER, OTHER)]
    assert looks_like(seen, apart).endswith("times the expected")


def test_one_factor_for_each_shard_of_all_gradients_looks_like_local_norms() -> None:
    one = (rows(0.3, 0.6, 1.4), rows(1, 2, 2))
    two = (rows(0.9, 2.1), rows(3, 3))
    seen = [Seen(*one)] * 2
    text = looks_like(seen, [one, two])
    assert "shards 0 to 1 are 0.30 and 0.70 times the expected" in text
    assert not looks_like(seen, [one])
    assert not looks_like(seen, [one, (rows(0.9, 2.4), rows(3, 3))])


def test_shards_that_are_equal_are_named_where_they_should_not_be() -> None:
    twice, apart = torch.stack([ONE, OTHER, ONE, OTHER]), torch.arange(12.0).reshape(4, 3)
    wide = MeshShape({"dp_replicate": 2, "dp_shard": 2})
    assert "2 shards are equal" in looks_like([Seen(twice, apart)], mesh=wide)
    assert "2 shards are equal" in looks_like([Seen(twice[:3], apart[:3])])
    for nothing in (torch.ones(4), torch.empty(0, 3), torch.tensor(1.0), apart):
        assert not repeats(nothing, 2)


def test_a_part_of_a_sum_over_an_axis_of_equal_data_is_named() -> None:
    mesh = MeshShape({"dp_shard": 2, "tp": 2})
    parts = [ONE, OTHER - ONE, 0.5 * OTHER, 0.5 * OTHER]
    assert "a part of the sum over tp" in looks_like([Seen(p, OTHER) for p in parts], mesh=mesh)
    assert "part" not in looks_like([Seen(p, ONE) for p in parts], mesh=mesh)
    assert "part" not in looks_like([Seen(p, OTHER) for p in parts[:2]])


def test_a_part_of_a_rank_alone_is_not_reduced() -> None:
    own = [ONE.repeat(3), OTHER.repeat(3) + torch.arange(9)]
    mean = (own[0] + own[1]) / 2
    text = looks_like([Seen(0.5 * mine, mean, own=mine) for mine in own])
    assert (
        "added with the weights 0.50 and 0.00 in place of 0.50 and 0.50 (never reduced?)" in text
    )


def test_a_mean_over_some_axes_of_the_mesh_is_named() -> None:
    own = [rank * ONE + rank**2 * OTHER for rank in range(4)]
    whole = sum(own, torch.zeros(3)) / 4
    mesh = MeshShape({"dp_replicate": 2, "dp_shard": 2})
    for name, other, groups in (
        ("dp_shard", "dp_replicate", [(0, 1), (0, 1), (2, 3), (2, 3)]),
        ("dp_replicate", "dp_shard", [(0, 2), (1, 3), (0, 2), (1, 3)]),
    ):
        means = [(own[one] + own[two]) / 2 for one, two in groups]
        seen = [Seen(mean, whole, own=mine) for mean, mine in zip(means, own, strict=True)]
        said = f"the mean over {name}: not reduced over {other}"
        assert looks_like(seen, mesh=mesh) == said
    assert not looks_like([Seen(whole, whole, own=mine) for mine in own], mesh=mesh)


def test_other_weights_of_the_ranks_own_gradients_are_named() -> None:
    def of_ranks(*weights: float) -> list[Seen]:
        observed, expected = weights[0] * ONE + weights[1] * OTHER, 0.25 * ONE + 0.75 * OTHER
        return [Seen(observed, expected, own=own) for own in (ONE, OTHER)]

    text = looks_like(of_ranks(0.5, 0.5))
    assert "with the weights 0.50 and 0.50 in place of 0.25 and 0.75 (a mean of the" in text
    assert looks_like(of_ranks(0.9, 0.3)).endswith("0.90 and 0.30 in place of 0.25 and 0.75")
    assert not looks_like([Seen(ONE * ONE, OTHER, own=own) for own in (ONE, OTHER)])


def test_a_parameter_that_keeps_its_first_value_was_never_updated() -> None:
    place = Place(1, "parameters", "layer.weight")
    assert looks_like([Seen(ONE, OTHER, initial=ONE)], place=place) == "never updated"


@pytest.mark.parametrize(
    "name",
    [
        "module.layer.weight",
        "_orig_mod.layer.weight",
        "layer._checkpoint_wrapped_module.weight",
        "_fsdp_wrapped_module.layer._fsdp_wrapped_module.weight",
        "layer.base_layer.weight",
        "base_model.model.layer.base_layer.weight",
        "renamed",
    ],
)
def test_names_of_wrappers_are_taken_away(name: str) -> None:
    names = PlainNames(["layer.weight", "layer.bias"], {"renamed": "layer.weight"})
    assert names.of(name) == "layer.weight"


def test_a_module_that_is_called_module_keeps_its_name() -> None:
    assert PlainNames(["a.module.weight"], {}).of("module.a.module.weight") == "a.module.weight"


def test_ranks_along_tp_have_equal_data() -> None:
    mesh = MeshShape.parse("dp_replicate=2,dp_shard=3,tp=2")
    assert mesh.size == 12
    assert mesh.data_axes == ("dp_replicate", "dp_shard")
    assert MeshShape.parse(str(mesh)) == mesh


def test_an_axis_that_may_be_mistyped_is_doubted_and_others_may_have_any_name() -> None:
    assert 'mean "dp_shard"' in " ".join(MeshShape.parse("dp_shrad=2").doubts)
    assert 'mean "tp"' in " ".join(MeshShape.parse("TP=2").doubts)
    assert not MeshShape.parse("fsdp=2,dp_shard_cp=2,dp=2,tp=2").doubts


def test_a_short_list_has_no_later_blocks() -> None:
    variation = Variation(lists=("layers",), depth=2)
    names = ("layers.0", "layers.1.up", "layers.2", "layers.10.up", "layersmore.5", "head")
    assert variation.kept(names) == ("layers.0", "layers.1.up", "layersmore.5", "head")
    assert Variation(lists=("layers",)).kept(names) == names

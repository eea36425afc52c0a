from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from traces import floats, gradient, trace

from fuzzshard.oracles.compare import agree, differences, rank_of, same_bits, unequal
from fuzzshard.parts.oracles import ORACLES
from fuzzshard.training.trace import Flat, Key, Piece, Pieces, Trace, cut

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("rows", "parts"), list(itertools.product(range(1, 8), range(1, 5))))
def test_a_cut_is_what_torch_chunk_cuts_and_empty_past_the_last_chunk(
    rows: int, parts: int
) -> None:
    whole = torch.arange(rows * 3).view(rows, 3)
    chunks = torch.chunk(whole, parts)
    for part in range(parts):
        expected = chunks[part] if part < len(chunks) else whole[:0]
        assert torch.equal(cut(whole, (Piece(0, parts, part),)), expected)


def test_the_cuts_of_all_ranks_are_the_whole() -> None:
    whole = torch.arange(5)
    assert torch.equal(torch.cat([cut(whole, (Piece(0, 4, part),)) for part in range(4)]), whole)


def test_two_cuts_apply_one_after_the_other() -> None:
    whole = torch.arange(24).view(4, 6)
    assert torch.equal(cut(whole, (Piece(0, 2, 1), Piece(1, 3, 0))), whole[2:, :2])


def test_a_flat_cut_is_a_range_of_the_flattened_whole() -> None:
    assert cut(torch.arange(6).view(2, 3), (Flat(2, 5),)).tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((Flat(1, 4),), (Piece(0, 2, 0),), True),
        ((Flat(3, 6),), (Piece(0, 2, 0),), False),
        ((), (Flat(2, 5),), True),
        ((Flat(0, 2),), (Flat(2, 6),), False),
        ((Flat(0, 4),), (Piece(1, 3, 1),), True),
    ],
)
def test_pieces_agree_where_they_overlap(one: Pieces, other: Pieces, expected: bool) -> None:
    whole = torch.randn(2, 3)
    pieces = [(cut(whole, pieces), pieces) for pieces in (one, other)]
    assert agree(whole.shape, *pieces) is expected


def test_pieces_that_differ_where_they_overlap_do_not_agree() -> None:
    whole = torch.zeros(2, 3)
    other = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert not agree(whole.shape, (cut(whole, (Flat(1, 4),)), (Flat(1, 4),)), (other, ()))


def test_no_cut_is_the_whole() -> None:
    whole = torch.arange(3)
    assert cut(whole, ()) is whole


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (floats(1.0, 2.0), floats(1.0, 2.0)),
        (floats(NAN, 1.0), floats(NAN, 1.0)),
        (floats(0.0), floats(-0.0)),
        (floats(INF), floats(INF)),
        (floats(), floats()),
        (torch.tensor([3]), torch.tensor([3])),
    ],
)
def test_equal_tensors_have_the_same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    assert same_bits(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (floats(1.0), floats(1.0 + 2**-23)),
        (floats(NAN), floats(1.0)),
        (floats(1.0), floats(NAN)),
        (floats(INF), floats(-INF)),
        (floats(1.0, 1.0), floats(1.0)),
        (floats(1.0, 1.0), torch.ones(2, 1)),
        (floats(1.0), floats(1.0, dtype=torch.float64)),
        (torch.tensor([3]), torch.tensor([4])),
    ],
)
def test_other_values_shapes_and_dtypes_are_other_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    assert not same_bits(a, b)


def test_equal_traces_have_no_differences() -> None:
    tensors = {gradient(1): floats(1.0), gradient(1, "b"): None}
    assert differences(trace(tensors), trace(tensors)) == []


def test_a_shard_is_compared_with_the_same_piece_of_the_whole() -> None:
    whole = trace({gradient(1): floats(1.0, 2.0, 3.0)})
    assert differences(whole, trace({gradient(1): floats(3.0)}, (Piece(0, 2, 1),))) == []
    (found,) = differences(whole, trace({gradient(1): floats(1.0)}, (Piece(0, 2, 1),)))
    assert found.expected is not None
    assert found.expected.tolist() == [3.0]


@pytest.mark.parametrize(("observed", "expected"), [(None, floats(1.0)), (floats(0.0), None)])
def test_a_tensor_on_one_side_only_is_a_difference_without_an_error(
    observed: torch.Tensor | None, expected: torch.Tensor | None
) -> None:
    (found,) = differences(trace({gradient(1): expected}), trace({gradient(1): observed}))
    assert not found.comparable


def test_what_an_engine_did_not_record_is_no_difference() -> None:
    assert differences(trace({gradient(1): floats(1.0)}), Trace()) == []


def test_differences_come_in_the_order_in_which_they_arose() -> None:
    keys = [
        Key(3, "output", "y"),
        gradient(1, "b"),
        gradient(1, "a"),
        Key(1, "input_gradient", "x"),
    ]
    found = differences(
        trace(dict.fromkeys(keys, floats(1.0))), trace(dict.fromkeys(keys, floats(2.0)))
    )
    assert [d.key for d in found] == [keys[3], keys[2], keys[1], keys[0]]
    assert sorted(keys, key=rank_of) == [d.key for d in found]


def test_oracles_have_places_of_their_own() -> None:
    assert len({oracle.place for oracle in ORACLES}) == len(ORACLES)


def test_many_pairs_are_told_apart_at_once_as_one_by_one() -> None:
    generator, pairs = random.Random(0), []
    for number in range(200):
        dtype = generator.choice([torch.float32, torch.float16, torch.int64, torch.bool])
        a = torch.ones([generator.randrange(4) for _ in range(number % 4)], dtype=dtype)
        b = a.clone()
        if a.numel() and generator.random() < 0.3:
            b.view(-1)[generator.randrange(a.numel())] = 0
        if dtype.is_floating_point and a.numel() and generator.random() < 0.3:
            a.view(-1)[0] = b.view(-1)[0] = NAN
        pairs.append((a, generator.choice([b, a, b.double()])))
    apart = {n for n, pair in enumerate(pairs) if pair[0] is not pair[1] and not same_bits(*pair)}
    assert unequal(pairs) == apart
    assert 20 < len(apart) < 150


def test_a_device_is_asked_once_for_all_tensors_of_one_dtype() -> None:
    class Asked(TorchDispatchMode):
        times = 0

        def __torch_dispatch__(
            self, call: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.times += call.name() in ("aten::equal", "aten::_local_scalar_dense")
            return call(*args, **kwargs or {})

    pairs = [(torch.ones(n), torch.ones(n)) for n in range(100)]
    with Asked() as asked:
        assert unequal(pairs) == set()
    assert asked.times == 1

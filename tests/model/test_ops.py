"""What an op says of itself, held against what the generic code makes of it."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict

import pytest
from msgspec.structs import fields, replace
from streams import Drawn, Streams

from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.program_text import program
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case
from fuzzshard.case.codec import decode, encode
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.oracles import ORACLES
from fuzzshard.reproducer.assemble import script
from fuzzshard.shrink.passes import Pass
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS

CRASH = "crash/fully_shard/RuntimeError in backward"

With = dict[type[Op], list[Case]]


@pytest.fixture(scope="module")
def drawn(streams: Streams) -> list[Drawn]:
    """All cases without CUDA: some features are in one case of 200."""
    return list(streams.each(cuda=False))


@pytest.fixture(scope="module")
def having(drawn: list[Drawn]) -> With:
    """The cases that have an op."""
    found: With = defaultdict(list)
    for case, _ in drawn:
        for kind in {type(op) for op in case.schedule}:
            found[kind].append(case)
    return found


each_op = pytest.mark.parametrize("kind", OPS, ids=lambda op: op.__name__)


@each_op
def test_every_op_is_drawn_valid_and_goes_through_json(kind: type[Op], having: With) -> None:
    case = having[kind][0]
    validate(case)
    assert decode(encode(case)) == case


@each_op
def test_features_that_an_op_makes_are_those_that_it_explains(
    kind: type[Op], drawn: list[Drawn]
) -> None:
    assert kind.meanings.items() <= FEATURES.items()
    assert kind.meanings.keys() <= frozenset().union(*(present for _, present in drawn))


def test_no_two_ops_make_one_feature_or_one_choice() -> None:
    names = Counter(name for op in OPS for name in op.meanings)
    choices = [choice for op in OPS for choice in op.choices]
    assert max(names.values()) == 1
    assert max(Counter(choice.name for choice in choices).values()) == 1
    assert max(Counter(choice.place for choice in choices).values()) == 1


@each_op
def test_every_op_has_a_line_in_a_program_and_words_for_a_sentence(
    kind: type[Op], having: With
) -> None:
    case = having[kind][0]
    for index, op in enumerate(case.schedule):
        if isinstance(op, kind):
            assert program(case)[index]
            assert op.noun()


@each_op
def test_every_op_is_printed_in_a_script(kind: type[Op], having: With) -> None:
    cases = [case for case in having[kind] if "fully_shard" in case.engines]
    for case in cases[:64]:
        others = tuple(op for op in case.schedule if type(op) is not kind)
        without = repaired(replace(case, schedule=others, expect=()))
        texts = [
            script(c, signature=CRASH, torch_version="2.15.0")
            for c in (case, without)
            if c is not None
        ]
        compile(texts[0], "repro.py", "exec")
        if len(set(texts)) == 2:
            return
    assert all(type(op) is not kind or op.call for case in cases for op in case.schedule)


@each_op
def test_every_op_can_be_left_out_and_made_simpler(kind: type[Op], having: With) -> None:
    def offered(each: Pass, case: Case) -> set[Case]:
        return {found for edit in each.edits(case) if (found := repaired(edit(case))) is not None}

    passes = {each.name: each for tier in TIERS for each in tier}
    assert any(
        sum(type(op) is kind for op in smaller.schedule)
        < sum(type(op) is kind for op in case.schedule)
        for case in having[kind][:25]
        for smaller in offered(passes["ops"], case)
    )


@each_op
def test_what_is_looked_at_after_an_op_can_be_recorded(kind: type[Op]) -> None:
    assert {look for oracle in ORACLES for look in oracle.looks}.issuperset(kind.looks)


@each_op
def test_every_op_has_statements_and_is_written_by_itself(kind: type[Op]) -> None:
    assert kind.statements is not Op.statements or kind.settings is not Op.settings
    assert kind.statement is not Op.statement or kind.says


@each_op
def test_an_op_is_documented_and_keeps_its_fields(kind: type[Op]) -> None:
    assert inspect.getdoc(kind)
    assert not {field.name for field in fields(kind)} & {"tag", "run", "lines"}

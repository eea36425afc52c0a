"""Every mutation yields valid cases, most of the time; and the kinds reach what they are named
after.
"""

import dataclasses
import functools
from random import Random

import pytest
from msgspec.structs import replace

from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.codec import decode, encode
from fuzzshard.case.features import features
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.case.validate import validate
from fuzzshard.mutate import KINDS, MUTATIONS, attempt, mutated
from fuzzshard.mutate.fits import MAX_LEAVES, MAX_OPS, fits
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, SetRequiresGrad, Step
from fuzzshard.strategies import draw_cases

SEED, WORLD = 11, 4


@functools.cache
def parents():
    """Drawn cases in which nothing is refused."""
    return [case for case in draw_cases(SEED, 100, world_size=WORLD) if not case.expect]


@dataclasses.dataclass
class Outcomes:
    tried: int = 0
    cases: list[Case] = dataclasses.field(default_factory=list)


NEEDS_LUCK = {
    "partial_loss": 0.06,
    "forward_prefetch": 0.25,
    "splice_model": 0.1,
    "regroup": 0.1,
    "tie": 0.1,
    "prefetch": 0.1,
}
"""Few parents have several outputs, two groups, equal shapes, or a block that fits elsewhere."""


@pytest.fixture(scope="module")
def outcomes():
    """Attempts at each mutation, of pairs of drawn cases: more of those that need luck."""
    rng = Random(SEED)
    found = {mutation.__name__: Outcomes() for mutation in MUTATIONS}
    for mutation in MUTATIONS:
        for _ in range(60 if mutation.__name__ in NEEDS_LUCK else 30):
            outcome = found[mutation.__name__]
            outcome.tried += 1
            parent, other = rng.choice(parents()), rng.choice(parents())
            mutant = attempt(mutation, rng, parent, other, WORLD, cuda=False)
            if mutant is not None:
                assert mutant != parent
                outcome.cases.append(mutant)
    return found


@pytest.mark.parametrize("name", [mutation.__name__ for mutation in MUTATIONS])
def test_most_attempts_yield_a_case(outcomes, name):
    rate = len(outcomes[name].cases) / outcomes[name].tried
    assert rate >= NEEDS_LUCK.get(name, 0.3), f"seed {SEED}: {name} {rate:.2f}"


def test_every_mutant_is_valid_and_survives_the_codec(outcomes):
    for outcome in outcomes.values():
        for mutant in outcome.cases:
            validate(mutant, WORLD)
            assert decode(encode(mutant)) == mutant
            assert len(mutant.schedule) <= MAX_OPS


def test_mutants_reach_features_that_their_parents_lack(outcomes):
    """A mutant of one parent may have any of these; the strategies draw them seldom."""
    reached = frozenset().union(*(features(c) for o in outcomes.values() for c in o.cases))
    rare = ("mesh:axis_of_one", "precision:mixed", "reuse:two_forwards", "freeze:toggled_on")
    assert reached.issuperset(rare), f"seed {SEED}: {set(rare) - reached}"


def test_drawn_cases_fit_with_few_exceptions():
    """Else mutants of them would be lost for no reason."""
    refused = [case for case in parents() if not fits(case, WORLD, cuda=False)]
    assert len(refused) / len(parents()) <= 0.06


SMALL = Case(
    seed=1,
    model=Block(
        children=(Child(name="a", module=Linear(out=4)), Child(name="b", module=Linear(out=4))),
        nodes=(
            Call(name="h0", module="a", args=("x",)),
            Call(name="h1", module="b", args=("h0",)),
        ),
        outputs=("h1",),
    ),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward(), Step()),
    wrap=(WrapGroup(modules=("a",)), WrapGroup(modules=("",))),
)


def test_a_mutant_of_a_small_case_differs_from_it_in_little():
    rng = Random(SEED)
    differences: list[int] = []
    for kind in ("flip", "toggle", "add_ops", "precision", "mesh"):
        for _ in range(20):
            mutant = mutated(kind, rng, SMALL, SMALL, 2, cuda=False)
            if mutant is not None:
                differences.append(len(features(mutant) ^ features(SMALL)))
    differences.sort()
    assert differences[len(differences) // 2] <= 6


@pytest.mark.parametrize(
    ("kind", "reaches"),
    [
        ("drop", lambda c: len(c.wrap) < 2),
        ("duplicate", lambda c: sum(isinstance(op, Step) for op in c.schedule) > 1),
        ("add_ops", lambda c: len(c.schedule) > 3),
        ("add_part", lambda c: bool(c.checkpoints)),
        ("add_part", lambda c: bool(c.freezes)),
        ("add_module", lambda c: len(c.model.children) > 2),
        ("toggle", lambda c: any(isinstance(op, SetRequiresGrad) for op in c.schedule)),
        ("flip", lambda c: c.init == "meta"),
        ("flip", lambda c: c.wrap[0].shard_dim != "first"),
        ("precision", lambda c: c.wrap[0].precision is not None),
        ("mesh", lambda c: c.mesh.replicate == 1),
        ("sizes", lambda c: any(m.module == Linear(out=3) for m in c.model.children)),
        ("move", lambda c: c.schedule[0] == Step()),
        ("splice", lambda c: c.mesh == Mesh(shard=1)),
        ("redraw_schedule", lambda c: c.wrap == SMALL.wrap and len(c.schedule) > 4),
        ("redraw_options", lambda c: bool(c.ignored)),
        ("redraw_plan", lambda c: c.wrap[0].modules != ("a",)),
    ],
)
def test_a_kind_of_mutation_reaches_what_it_is_for(kind, reaches):
    rng, other = Random(SEED), replace(SMALL, mesh=Mesh(shard=1))
    tries = (mutated(kind, rng, SMALL, other, 2, cuda=False) for _ in range(400))
    assert any(mutant is not None and reaches(mutant) for mutant in tries), f"seed {SEED}"


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ((Forward(), Step()), "nothing is differentiated"),
        (
            (Forward(), Backward(), Forward(), Step()),
            "a step changes parameters under a pending loss",
        ),
        (
            (SetRequiresGrad(target="", value=False), Forward(), Backward()),
            "the loss does not depend on anything trainable",
        ),
    ],
)
def test_a_schedule_that_autograd_refuses_does_not_fit(schedule, why):
    assert not fits(replace(SMALL, schedule=schedule), 2, cuda=False), why


def test_a_mutant_does_not_outgrow_the_limits():
    mutant, rng = SMALL, Random(SEED)
    for _ in range(100):
        mutant = (
            mutated(
                rng.choice(("duplicate", "add_module", "splice")),
                rng,
                mutant,
                SMALL,
                2,
                cuda=False,
            )
            or mutant
        )
    assert len(mutant.schedule) <= MAX_OPS
    assert fits(mutant, 2, cuda=False)
    assert len(mutant.model.children) <= MAX_LEAVES


def test_mutation_depends_on_the_random_numbers_alone():
    first, second = (
        [mutated(kind, Random(SEED), *parents()[3:5], WORLD, cuda=False) for kind in KINDS]
        for _ in "ab"
    )
    assert first == second

import itertools
import subprocess
import sys

import pytest

from fuzzshard.case.features import ALL_FEATURES, features
from fuzzshard.guidance import Feedback, guided
from fuzzshard.guidance.novelty import guiding_features
from fuzzshard.guidance.stream import FRESH, GuidedStream
from fuzzshard.strategies import case_stream, draw_cases

SEED, WORLD = 5, 4


def fresh(seed=SEED):
    return case_stream(seed, world_size=WORLD)


def run(stream, count, *, passes=lambda case: True, points=lambda case: 0):
    """Takes ``count`` cases and tells the stream at once what became of each."""
    cases = []
    for case in itertools.islice(stream, count):
        cases.append(case)
        stream.learn(Feedback(case, passes(case), points(case)))
    return cases


def test_without_guidance_the_stream_is_the_plain_one():
    assert run(guided("none", fresh(), SEED, world_size=WORLD), 60) == draw_cases(
        SEED, 60, world_size=WORLD
    )


def test_a_guided_stream_depends_on_the_seed_and_on_what_it_is_told():
    def take(seed, passes=lambda case: True):
        return run(
            guided("features", fresh(seed), seed, world_size=WORLD, worlds=16), 30, passes=passes
        )

    taken = take(SEED)
    assert taken == take(SEED)
    assert taken != take(SEED + 1)
    assert taken != take(SEED, passes=lambda case: False)


def test_what_earlier_sessions_ran_is_not_novel_any_more():
    before = [guiding_features(case) for case in draw_cases(SEED + 1, 40, world_size=WORLD)]
    stream = guided("features", fresh(), SEED, world_size=WORLD, before=before)
    anew = guided("features", fresh(), SEED, world_size=WORLD)
    assert isinstance(stream, GuidedStream)
    assert isinstance(anew, GuidedStream)
    for present in before:
        assert stream.conjunctions.rarity(present) < anew.conjunctions.rarity(present)


def test_a_guided_stream_does_not_depend_on_the_hashes_of_the_process():
    code = (
        "import hashlib, itertools\n"
        "from fuzzshard.case.codec import encode\n"
        "from fuzzshard.guidance import Feedback, guided\n"
        "from fuzzshard.strategies import case_stream\n"
        "stream = guided('features', case_stream(5, world_size=4), 5, world_size=4, worlds=16)\n"
        "digest = hashlib.sha256()\n"
        "for case in itertools.islice(stream, 20):\n"
        "    digest.update(encode(case))\n"
        "    stream.learn(Feedback(case, True))\n"
        "print(digest.hexdigest())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_no_case_is_given_twice():
    cases = run(guided("features", fresh(), SEED, world_size=WORLD, worlds=16), 60)
    assert len(set(cases)) == len(cases)


@pytest.mark.slow
def test_guidance_runs_more_of_what_is_seldom_drawn():
    plain = [features(case) for case in draw_cases(SEED + 1, 300, world_size=WORLD)]
    seldom = {
        f for f in ALL_FEATURES if 0 < sum(f in present for present in plain) / len(plain) < 0.06
    }

    def per_case(cases):
        return sum(len(present & seldom) for present in cases) / len(cases)

    chosen = run(guided("features", fresh(), SEED, world_size=WORLD), 40)
    assert per_case(list(map(features, chosen))) > 1.4 * per_case(plain)


def test_only_cases_that_pass_have_children():
    stream = GuidedStream(fresh(), SEED, world_size=WORLD, candidates=2)
    run(stream, 15, passes=lambda case: False)
    assert not stream.pool.entries
    run(stream, 15)
    assert stream.pool.entries
    run(stream, 10)
    assert sum(entry.children for entry in stream.pool.entries) > 0


def test_a_case_that_reaches_new_code_enters_the_pool_with_a_bonus():
    stream = GuidedStream(fresh(), SEED, world_size=WORLD, candidates=2)
    target = run(stream, 10, points=lambda case: 0)[-1]
    case = next(stream)
    stream.learn(Feedback(case, True, new_points=40))
    assert stream.pool.entries[-1].case == case != target
    assert stream.pool.entries[-1].bonus == max(entry.bonus for entry in stream.pool.entries) > 1


def test_what_is_told_about_an_unknown_case_is_ignored():
    stream = GuidedStream(fresh(), SEED, world_size=WORLD)
    (stranger,) = draw_cases(99, 1, world_size=WORLD)
    stream.learn(Feedback(stranger, True))
    assert not stream.pool.entries
    assert sum(stream.scheduler.shares().values()) > 0.99


@pytest.mark.slow
def test_a_share_of_the_cases_is_run_as_the_strategies_draw_it():
    """Of these, plain draws and winners among drawn candidates; at least a quarter, in
    expectation.
    """
    stream = GuidedStream(fresh(), SEED, world_size=WORLD)
    drawn = set(draw_cases(SEED, 550, world_size=WORLD))
    run(stream, 20)
    cases = run(stream, 40)
    assert sum(case in drawn for case in cases) >= 5
    assert FRESH in stream.scheduler.shares()


def test_guidance_imports_no_torch():
    code = "import fuzzshard.guidance, sys; sys.exit('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True
    )

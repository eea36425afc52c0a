from collections import Counter
from random import Random

import numpy as np
import pytest
from cases import make_case
from msgspec.structs import replace

from fuzzshard.guidance.pool import MAX_ENTRIES, Pool
from fuzzshard.guidance.scheduler import FIRST_SHARE, FLOOR, Scheduler

CASES = [replace(make_case(), seed=seed) for seed in range(3)]
NOTHING = np.array([], dtype=np.intp)


def test_shares_sum_to_one_and_nothing_starves():
    scheduler = Scheduler(["fresh", "a", "b"])
    for _ in range(500):
        scheduler.reward("a", 5.0, 0.1)
        scheduler.reward("b", 0.0, 10.0)
    shares = scheduler.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["fresh"] >= FLOOR * FIRST_SHARE
    assert shares["b"] >= FLOOR * (1 - FIRST_SHARE) / 2


def test_time_goes_to_where_novelty_comes_from():
    scheduler = Scheduler(["fresh", "a", "b"])
    for _ in range(50):
        scheduler.reward("a", 2.0, 0.5)
        scheduler.reward("b", 1.0, 0.5)
    shares = scheduler.shares()
    assert shares["a"] > shares["b"]
    chosen = Counter(scheduler.choose(Random(seed)) for seed in range(2000))
    assert chosen["a"] / 2000 == pytest.approx(shares["a"], abs=0.04)


def test_equal_novelty_in_less_time_is_worth_more():
    scheduler = Scheduler(["fresh", "fast", "slow"])
    for _ in range(50):
        scheduler.reward("fast", 1.0, 0.1)
        scheduler.reward("slow", 1.0, 1.0)
    assert scheduler.shares()["fast"] > scheduler.shares()["slow"]


def test_what_was_earned_long_ago_is_forgotten():
    scheduler = Scheduler(["fresh", "a", "b"])
    for _ in range(300):
        scheduler.reward("a", 1.0, 1.0)
    for _ in range(600):
        scheduler.reward("a", 0.0, 1.0)
        scheduler.reward("b", 0.5, 1.0)
    assert scheduler.shares()["b"] > scheduler.shares()["a"]


def test_the_rarest_entry_is_chosen_most_often():
    pool, rng = Pool(), Random(1)
    for case in CASES:
        pool.add(case, NOTHING)
    rarity = {CASES[0]: 1.0, CASES[1]: 1.0, CASES[2]: 8.0}
    chosen = Counter(pool.choose(rng, lambda e: rarity[e.case]).case for _ in range(1000))
    assert chosen.most_common(1)[0][0] == CASES[2]
    assert len(chosen) == 3


def test_an_entry_that_had_many_children_gives_way_unless_they_were_fruitful():
    pool = Pool()
    for case in CASES:
        pool.add(case, NOTHING)
    fresh, barren, fruitful = pool.entries
    barren.children = fruitful.children = 9
    fruitful.fruitful = 9
    assert barren.energy(1.0) < fresh.energy(1.0) == fruitful.energy(1.0)


def test_what_reached_new_code_is_chosen_more_often():
    pool = Pool()
    pool.add(CASES[0], NOTHING)
    pool.add(CASES[1], NOTHING, 5.0)
    assert pool.entries[1].energy(1.0) == 5 * pool.entries[0].energy(1.0)


def test_a_full_pool_loses_its_oldest_entry():
    pool = Pool()
    for _ in range(MAX_ENTRIES):
        pool.add(CASES[0], NOTHING)
    pool.add(CASES[1], NOTHING)
    assert len(pool.entries) == MAX_ENTRIES
    assert pool.entries[-1].case == CASES[1]

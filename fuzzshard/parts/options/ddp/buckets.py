"""Sizes of buckets."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class Buckets(DDPOption):
    """Torch's own size, a few parameters each, one each, or sizes one by one.

    In MiB: some 200 bytes, or 1. Torch's own tests have such fractions as well.
    """

    name, place = "buckets", 1
    texts = {
        "few_each": "bucket_cap_mb=2e-4",
        "one_each": "bucket_cap_mb=1e-6",
        "listed": "bucket_cap_mb_list=[1e-4, 2e-5, 3e-4]",
    }
    meanings = {
        "ddp:buckets_few_each": "buckets of a few parameters each",
        "ddp:buckets_one_each": "buckets of one parameter each",
        "ddp:buckets_listed": "bucket_cap_mb_list",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str:
        return tape.weighted((("default", 6), ("one_each", 4), ("few_each", 3), ("listed", 3)))

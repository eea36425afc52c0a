"""After a backward an engine raises the text of a refusal: of the one that the seed of the case
numbers.
"""

import builtins

from fuzzshard.engines.base import Engine
from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.fsdp1.engine import FSDP1
from fuzzshard.engines.fully_shard.engine import FullyShard
from fuzzshard.engines.registry import REFUSALS


def apply() -> None:
    def wrong(self: Engine, index: int) -> None:
        refusal = REFUSALS[self.case.seed]
        raise getattr(builtins, refusal.error)(refusal.pattern.partition("|")[0].replace(".*", ""))

    for engine in (DDP, FullyShard, FSDP1):
        engine.after_backward = wrong

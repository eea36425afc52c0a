"""How users name features: by globs, and by the words of the field."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator
from fnmatch import fnmatchcase

from fuzzshard.analysis.feature_names import DIMENSIONS, FEATURES
from fuzzshard.errors import UsageError

_NEAREST = 3
"""How many names an error suggests."""
_ALIKE = 0.75
"""How alike a name must be that is suggested for another (:mod:`difflib`)."""
_SYNONYMS: dict[str, str] = {
    "ac": "checkpoint:*",
    "accumulation": "schedule:microbatches",
    "activation_checkpoint": "checkpoint:*",
    "amp": "precision:*|fsdp1:precision",
    "bf16": "precision:bfloat16",
    "compiled": "compile:*",
    "cpu_offload": "offload:*|fsdp1:offload",
    "dcp": "op:save_dcp",
    "ddp": "engine:ddp",
    "fp16": "precision:float16",
    "fp32": "dtype:float32",
    "fp64": "dtype:float64",
    "frozen": "freeze:*",
    "fsdp": "engine:fully_shard|engine:fsdp1",
    "fsdp1": "engine:fsdp1",
    "fsdp2": "engine:fully_shard",
    "gradient_accumulation": "schedule:microbatches",
    "learning_rate": "optimizer:*_lr",
    "mixed_precision": "precision:*|fsdp1:precision",
    "offload": "offload:*|fsdp1:offload",
    "pp": "mesh:pipeline",
    "scheduler": "optimizer:*_lr",
    "sequence_parallel": "tensor:sequence*",
    "state_dict": "op:*state_dict*",
    "tensor_parallel": "mesh:tensor",
    "tied": "reuse:tied_*",
    "tp": "mesh:tensor",
    "zero": "engine:zero_redundancy",
}
"""What the field calls some features, as globs."""


def dimension_of(feature: str) -> str:
    """Return the part of a feature's name before the colon."""
    return feature.partition(":")[0]


@functools.cache
def matching(glob: str) -> frozenset[str]:
    """Return the features that match a glob, or one of several globs with ``|`` between them."""
    parts = glob.split("|")
    return frozenset(f for f in FEATURES if any(fnmatchcase(f, part) for part in parts))


def check_glob(glob: str, said: str) -> None:
    """Raise :class:`UsageError` where a glob, or one between two ``|``, matches no feature.

    ``said`` is how the user has given it.
    """
    for part in glob.split("|"):
        if not matching(part):
            raise UsageError(f"{said} matches no feature", _suggestion(part))


def _glob_of(words: str) -> str | None:
    """Return what words of the field stand for: a feature, a dimension, or a part of a name."""
    key = _key(words)
    for name in (key, key.removesuffix("s"), key.removesuffix("ing"), key.removesuffix("ism")):
        if name in _SYNONYMS:
            return _SYNONYMS[name]
        if name in DIMENSIONS:
            return f"{name}:*"
        if found := _named(name) or _containing(name):
            return "|".join(found)
    return None


def _key(words: str) -> str:
    return words.casefold().replace("-", "_").replace(" ", "_")


def _named(name: str) -> list[str]:
    return [feature for feature in FEATURES if _tail(feature) == name]


def _containing(name: str) -> list[str]:
    return [feature for feature in FEATURES if f"_{name}_" in f"_{_tail(feature)}_"]


def _suggestion(text: str) -> str:
    nearest = list(dict.fromkeys(_nearest(_key(text))))[:_NEAREST]
    asked = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"{asked}fuzzshard features lists all of them"


def _nearest(text: str) -> Iterator[str]:
    """Yield what may be meant by a text that is no feature, the likeliest first."""
    dimension, _, rest = text.replace("*", "").rpartition(":")
    within = f"{dimension}:" if dimension else ""
    if (glob := _glob_of(rest)) and all(part.startswith(within) for part in glob.split("|")):
        yield from glob.split("|")
        return
    yield from difflib.get_close_matches(text, FEATURES, cutoff=_ALIKE)
    tails = {_tail(feature): feature for feature in FEATURES}
    for close in difflib.get_close_matches(rest, [*tails, *DIMENSIONS, *_SYNONYMS], cutoff=_ALIKE):
        yield from (tails.get(close) or _glob_of(close) or close).split("|")
    yield from (f for f, meaning in FEATURES.items() if rest in meaning.casefold().split())


def _tail(feature: str) -> str:
    return feature.partition(":")[2]

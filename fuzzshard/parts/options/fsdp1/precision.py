"""``mixed_precision``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import Reasons, SeenByFSDP1, Tape
from fuzzshard.parts.options.fsdp1 import FSDP1Option
from fuzzshard.parts.options.precision import Precision


class MixedPrecision(FSDP1Option):
    """The policy of all units, with ``buffer_dtype`` following ``param_dtype``."""

    name, argument, place, is_policy = "precision", 4, 12, True
    meanings = {"fsdp1:precision": "mixed precision of FSDP1"}

    @override
    def arguments(self, value: Precision | None) -> tuple[str, ...]:
        if value is None:
            return ()
        param, reduce = value.dtype_of("parameters"), value.dtype_of("gradients")
        named = {"param": param, "reduce": reduce, "buffer": param}
        told = [f"{name}_dtype=torch.{dtype}" for name, dtype in named.items() if dtype]
        told += [] if value.does("casts_inputs") else ["cast_root_forward_inputs=False"]
        return (f"mixed_precision=MixedPrecision({', '.join(told)})",)

    @override
    def excludes(self, value: Precision | None, seen: SeenByFSDP1) -> Reasons:
        ours = "fuzzshard: the reference models this as fully_shard documents it"
        if value is None:
            return
        if value.dtype_of("outputs"):
            yield (
                "an output dtype, which MixedPrecision (api.py) does not have",
                "api.py, MixedPrecision: its attributes have no output dtype",
            )
        if not seen.case.root_is_wrapped:
            yield "mixed precision of a root that the case does not wrap", ours
        if seen.hides_buffers:
            yield "mixed precision of buffers, which fully_shard does not cast", ours
        if seen.case.ignored:
            yield (
                "mixed precision of parameters that fully_shard ignores, and so the reference",
                ours,
            )


def draw_policy(tape: Tape) -> Precision:
    """Draw a policy with parameters in half precision."""
    dtype: Dtype = "float16" if tape.chance(35) else "bfloat16"
    reduced: tuple[tuple[Dtype | None, int], ...] = ((dtype, 3), (None, 2), ("float32", 2))
    return Precision().with_dtypes({"parameters": dtype, "gradients": tape.weighted(reduced)})

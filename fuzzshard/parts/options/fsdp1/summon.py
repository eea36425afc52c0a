"""``summon_full_params()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1, Reasons, SeenByFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option, shards


class Summon(FSDP1Option):
    """What happens in ``summon_full_params`` after every step: full parameters are doubled and
    shards halved; or they are zeroed with ``writeback=False``; or they are read on the host, on
    the first rank, with gradients, or in the root's unit alone.
    """

    name, place, further = "summon", 9, True
    texts = {
        "written": "",
        "discarded": "writeback=False",
        "on_host": "writeback=False, offload_to_cpu=True",
        "first_rank": "writeback=False, rank0_only=True",
        "gradients": "with_grads=True",
        "root": "recurse=False",
    }
    traits = {
        **dict.fromkeys(("on_host", "first_rank", "gradients", "root"), ("summons",)),
        "written": ("summons", "doubles"),
        "discarded": ("summons", "zeroes"),
    }
    meanings = {
        "fsdp1:summon_written": "full parameters are changed after every step",
        "fsdp1:summon_discarded": "full parameters are changed with writeback=False",
        "fsdp1:summon_on_host": "full parameters are read on the host",
        "fsdp1:summon_first_rank": "full parameters are read on the first rank",
        "fsdp1:summon_gradients": "full parameters are read with their gradients",
        "fsdp1:summon_root": "the full parameters of the root's unit alone are read",
    }

    @override
    def arguments(self, value: str | None) -> tuple[str, ...]:
        return ()

    @override
    def summoned(self, value: str | None) -> str:
        return self.texts.get(value, "")

    @override
    def draw(self, drawing: DrawingFSDP1) -> str | None:
        case = drawing.case
        # in float64 it overruns a buffer of float32, and spoils the ranks for whatever comes
        # next (unshard_grad in torch/distributed/fsdp/_flat_param.py; corpus/findings has it)
        gradients = case.fsdp1.does("has_originals") and case.dtype == "float32"
        drawn: str | None = drawing.tape.weighted(
            (
                *((None, 6), ("written", 3), ("discarded", 3), ("root", 2), ("first_rank", 2)),
                *((("gradients", 3),) if gradients else ()),
                *((("on_host", 2),) if drawing.cuda and shards(case) else ()),
            )
        )
        return drawn

    @override
    def needs_cuda(self, value: str | None) -> str | None:
        if value == "on_host":
            return "summon_full_params(offload_to_cpu=True) needs CUDA to offload from"
        return None

    @override
    def excludes(self, value: str | None, seen: SeenByFSDP1) -> Reasons:
        source = "fully_sharded_data_parallel.py, summon_full_params: "
        if value == "gradients" and not seen.case.fsdp1.does("has_originals"):
            yield (
                "summon_full_params(with_grads=True) of flat parameters",
                f"{source}'only supported when passing use_orig_params=True to the FSDP "
                "constructor'",
            )
        if value == "on_host" and not shards(seen.case):
            yield (
                "summon_full_params(offload_to_cpu=True) of parameters that are not sharded",
                f"{source}'this offloading currently only occurs if the parameter is sharded'",
            )

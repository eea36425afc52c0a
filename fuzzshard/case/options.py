"""What a Case can say beyond its graph and its schedule: the options of engines, and what to
expect.
"""

from __future__ import annotations

from typing import Literal

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines.ddp import DDP as DDP
from fuzzshard.parts.engines.fsdp1 import FSDP1 as FSDP1
from fuzzshard.parts.op import Ranks
from fuzzshard.parts.part import Part
from fuzzshard.parts.precision import Precision as Precision


class ParameterDtype(Part, frozen=True, kw_only=True):
    """The parameters at or below ``target`` are made in ``dtype`` in place of the case's."""

    target: str
    dtype: Dtype


CommunicationOption = Literal[
    "sum",
    "allocate",
    "two_buffers",
    "hook",
    "hook_stream",
    "custom_gather",
    "custom_scatter",
    "separate_group",
    "keep_storage",
    "zeros_for_unused",
    "no_backward_unshard",
    "share_streams",
]
"""What a wrapped module may be told about its collectives and its memory.

To add up only, and divide by itself (``set_force_sum_reduction_for_comms``); that the process
group allocates (``set_allocate_memory_from_process_group_for_comm``); that two reduce-scatters may
be in flight (``set_reduce_scatter_max_input_buffers``); that reduce-scatters have a process group
of their own (``set_separate_reduce_scatter_group``); that unsharded memory is kept
(``set_keep_unsharded_storage``); that backward needs no parameters
(``set_unshard_in_backward(False)``). ``set_all_reduce_hook`` is given a hook that changes nothing,
with a stream or without; ``set_custom_all_gather`` and ``set_custom_reduce_scatter`` are given
objects that do what is done without them. All groups with ``share_streams`` go to one call of
``share_comm_ctx``. No value changes, but that with ``zeros_for_unused``
(``set_reduce_scatter_unused_params``) parameters get zeros where they had no gradient.
"""


class TensorParallel(Part, frozen=True, kw_only=True):
    """One entry of ``parallelize_module``'s plan, for a Linear, an Embedding or a norm.

    ``input`` and ``output`` are the layouts of the activations outside: as the style has them by
    default (a column parallel module takes replicated and gives sharded features, a row parallel
    one the other way round), ``replicate``, or ``sequence`` (sharded along axis 1).
    ``local_output=False`` returns a DTensor.
    """

    module: str
    style: Literal["colwise", "rowwise", "sequence"]
    input: Literal["default", "replicate", "sequence"] = "default"
    output: Literal["default", "replicate", "sequence"] = "default"
    local_output: bool = True


DelaySite = Literal[
    "before_all_gather",
    "before_reduce_scatter",
    "before_all_reduce",
    "after_forward",
    "after_backward",
    "before_step",
    "after_step",
]


class Delay(Part, frozen=True, kw_only=True):
    """Waits at every occurrence of ``site`` under every engine but the reference.

    On the CPU the host sleeps, on CUDA the current stream does.
    """

    site: DelaySite
    milliseconds: float
    ranks: Ranks = "all"


class Expect(Part, frozen=True, kw_only=True):
    """``engine`` must raise, or warn, with a text that ``pattern`` (a regex) is found in, at
    ``op``.

    On the other ranks, and elsewhere, it must not warn so. After an expected error the engine's
    run ends.
    """

    kind: Literal["error", "warning"]
    engine: str
    pattern: str
    op: int
    ranks: Ranks = "all"


Relation = Literal["reshard", "prefetch", "checkpoint", "delay", "unshard", "plan", "mesh"]

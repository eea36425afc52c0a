"""What a Case can say beyond its graph and its schedule: the options of engines, and what to
expect.
"""

from __future__ import annotations

from typing import Literal, get_args

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.op import Ranks
from fuzzshard.parts.options.context_parallel import ContextParallel as ContextParallel
from fuzzshard.parts.options.ddp import DDP as DDP
from fuzzshard.parts.options.fsdp1 import FSDP1 as FSDP1
from fuzzshard.parts.options.pipelining import Pipelining as Pipelining
from fuzzshard.parts.options.precision import Precision as Precision
from fuzzshard.parts.options.spmd import SPMD as SPMD
from fuzzshard.parts.part import Part


class ParameterDtype(Part, frozen=True, kw_only=True):
    """The parameters at or below ``target`` are made in ``dtype`` in place of the case's."""

    target: str
    dtype: Dtype


Along = Literal["sequence", "rows", "features"]
"""What activations are sharded along: axis 1, the first axis, or the last one."""
_ALONG: dict[str, Along] = {along: along for along in get_args(Along)}


class TensorParallel(Part, frozen=True, kw_only=True):
    """One entry of ``parallelize_module``'s plan, for a Linear, an Embedding or a norm; or, as
    ``dtensor``, a module that ``distribute_module`` replicates; or, as ``prepare``, a block.

    ``input`` and ``output`` are the layouts of the activations outside: as the style has them by
    default (a column parallel module takes replicated and gives sharded features, a row parallel
    one the other way round; a norm has parts of the sequence, and the output is as the input), or
    as they say. ``from_end``: dims are counted from the last one, by negative numbers.
    ``local_output=False`` returns a DTensor. ``initial`` says which rank's values a parameter gets
    (``src_data_rank``); those of other ranks are zeros then, unless each keeps its own.

    A ``dtensor`` module takes and returns plain tensors, and computes with DTensors: its argument
    is sharded along ``dim``, or replicated if that is None. The whole of its ``result`` is given
    by that method, or by ``PrepareModuleInputOutput``, which makes the argument a DTensor, too.
    With ``grad_placements`` it says what the gradients of both will be. With ``local_map`` each
    rank computes with its own rows, and other ranks know nothing of that.

    A ``prepare`` block has ``PrepareModuleInput`` for those of its arguments that are
    ``prepared``: from ``input``, which is the layout of plain ones, they become DTensors that lie
    along ``dim``, or, with ``local_output``, plain tensors again. A ``prepare_output`` block has
    ``PrepareModuleOutput`` for such results, likewise; both are one ``PrepareModuleInputOutput``.
    """

    module: str
    style: Literal["colwise", "rowwise", "sequence", "dtensor", "prepare", "prepare_output"]
    input: Literal["default", "replicate", Along] = "default"
    output: Literal["default", "replicate", Along] = "default"
    from_end: bool = False
    local_output: bool = True
    initial: Literal["equal", "first_rank", "last_rank", "own"] = "equal"
    dim: Literal[-1, 0, 1] | None = None
    result: Literal["full_tensor", "to_local", "style"] = "full_tensor"
    grad_placements: bool = False
    local_map: bool = False
    prepared: tuple[str, ...] = ()

    @property
    def is_of_leaf(self) -> bool:
        """Whether it is about what a module has, and not about values of a block alone."""
        return self.style not in ("prepare", "prepare_output")

    @property
    def takes(self) -> Along | None:
        """What the plain argument of a style is taken to be sharded along."""
        defaults = {"rowwise": "features", "sequence": "sequence"}
        return _ALONG.get(defaults.get(self.style, "") if self.input == "default" else self.input)

    @property
    def gives(self) -> Along | None:
        """What the result of a style is sharded along."""
        if self.style == "sequence":
            return self.takes
        defaults = {"colwise": "features"}
        layout = defaults.get(self.style, "") if self.output == "default" else self.output
        return _ALONG.get(layout)

    @property
    def shares_rows(self) -> bool:
        """Whether ranks have plain tensors of rows that they share evenly."""
        rows = self.gives == "rows" or (self.dim == 0 and not self.is_of_leaf)
        return self.local_map or (self.local_output and rows)


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

"""What a Case can say beyond its graph and its schedule: the options of engines, and what to
expect.
"""

from __future__ import annotations

from typing import Literal

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.op import Ranks
from fuzzshard.parts.part import Part


class Precision(Part, frozen=True, kw_only=True):
    """``MixedPrecisionPolicy``: dtypes of parameters in forward, of reduced gradients, of outputs.

    ``keep="vectors"`` is a ``param_dtype_override_fn`` by which parameters of one dimension keep
    their own.
    """

    param: Dtype | None = None
    reduce: Dtype | None = None
    output: Dtype | None = None
    cast_inputs: bool = True
    keep: Literal["vectors"] | None = None


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


class FSDP1(Part, frozen=True, kw_only=True):
    """Options of the engine ``fsdp1`` (``FullyShardedDataParallel``), for all its units.

    ``wrapping``: each unit by itself bottom-up, or by an auto-wrap policy. ``precision`` with
    ``buffer`` following ``param``. ``debug="detail"`` sets ``torch.distributed``'s debug level.

    - ``initial``: how the units come to the case's values: they have them; only the first rank has
      (``sync_module_states``); by ``apply()`` of what doubles halves; by ``param_init_fn``.
    - ``hook``: torch's communication hook, or one that divides after the sum.
    - ``summon``: after every step, ``summon_full_params()``: doubles everything and halves the
    shards;
      with ``writeback=False``, zeroes everything; reads it on the host, on the first rank, with
      gradients, or in the root's unit alone.
    - ``device_mesh``: in place of the process group.
    """

    strategy: Literal[
        "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"
    ] = "full_shard"
    use_orig_params: bool = False
    wrapping: Literal["manual", "policy"] = "manual"
    forward_prefetch: bool = False
    backward_prefetch: Literal["pre", "post"] | None = "pre"
    limit_all_gathers: bool = True
    offload: bool = False
    precision: Precision | None = None
    debug: Literal["off", "detail"] = "off"
    initial: Literal["equal", "first_rank", "applied", "meta"] = "equal"
    hook: Literal["torch", "average"] | None = None
    summon: (
        Literal["written", "discarded", "on_host", "first_rank", "gradients", "root"] | None
    ) = None
    device_mesh: bool = False


class DDP(Part, frozen=True, kw_only=True):
    """Options of the engines ``ddp`` and ``replicate`` (``DistributedDataParallel``).

    Fields with the names of its arguments are these.

    - ``buckets``: torch's own size, a few parameters each, one each, or sizes one by one.
    - ``buffers``: the first rank's before every forward or everyone's own, by
    ``broadcast_buffers`` or
      by ``forward_sync_buffers``.
    - ``initial``: before ``init_sync`` only the first rank has the case's values; or that is off.
    - ``hook``: torch's ``allreduce_hook``, or one that divides after the sum.
    - ``join``: trains within ``ddp.join()``, which divides by the ranks there were at first or by
    those
      left, raises where a rank is done, or is off. ``replicate`` has none.
    - ``manual_finalization``: ``finalize_backward()`` after every synchronised backward.
    - ``ignored_modules``: ``replicate`` is given the modules that the case ignores.
    """

    find_unused_parameters: bool = True
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    lazy_bucket_allocation: bool = False
    buckets: Literal["default", "few_each", "one_each", "listed"] = "default"
    buffers: Literal["local", "forward_local", "broadcast", "forward_broadcast"] = "local"
    initial: Literal["equal", "first_rank", "unsynced"] = "equal"
    device_mesh: bool = False
    hook: Literal["allreduce", "average"] | None = None
    join: Literal["initial", "effective", "throwing", "off"] | None = None
    manual_finalization: bool = False
    ignored_modules: bool = False

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether every forward begins with the buffers of the first rank."""
        return self.buffers in ("broadcast", "forward_broadcast")


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

"""FSDP1 frees the GPU's copy of an offloaded parameter that it does not shard while kernels read
it.

With ``NO_SHARD``, or what a group of one rank makes of the others, and CPU offload ``pre_unshard``
in ``torch/distributed/fsdp/_flat_param.py`` copies the flat parameter to the GPU on one stream.
Another reads it, and ``_use_sharded_flat_param`` lets go of it. Only all-gathers tell the
allocator of the other stream (``_all_gather_flat_param``), and ``NO_SHARD`` has none, so the
memory goes to the next unit's copy at once: a module computes with the parameters of another.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1 CPUOffload: a module computes with the parameters of another when nothing is sharded"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "whether to offload parameters to CPU when not involved in computation", "CPUOffload"
)
SETUP = (
    "One GPU, FSDP1 for the sake of its CPU offload: what is not sharded is copied to the GPU "
    "unit by unit."
)
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/194519",
        "closed: of August 2026, with this cause; torch 2.15 has its lines, which this takes over",
        "FSDP CPU offload _cpu_grad stale gradient unused parameters zero_grad NO_SHARD "
        "record_stream",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle._use_sharded_flat_param",
        """
        flat_param.data = flat_param._local_shard  # type: ignore[attr-defined]
        """,
        """
        if self._offload_params and not self.uses_sharded_strategy:
            _no_dispatch_record_stream(
                flat_param.data, self._device_handle.current_stream()
            )
        flat_param.data = flat_param._local_shard  # type: ignore[attr-defined]
        """,
    ),
)

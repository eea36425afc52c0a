"""AOTAutograd counts the symbolic sizes of a DTensor that a graph returns before tracing
specialises them.

A graph returns the symbolic sizes of its DTensors besides their local tensors. Metadata that is
collected before tracing says how many (``subclass_fw_graph_out_meta``, made by
``create_subclass_metadata`` in ``torch/_functorch/_aot_autograd/subclass_utils.py``). If tracing
finds that such a size is a constant, the graph does not return it. The wrapper around the graph
still expects it: it fails, or takes a result of the backward for one of the forward. Such a graph
has to be counted and traced again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = (
    "torch.compile: outputs are miscounted when tracing specialises the size of a returned DTensor"
)
COMPONENT = "compile"
WEIGHT = "bug"
CONTRACT = Promise(
    "This list contains subclass information on all of the fw graph outputs except for "
    "saved_for_bw_tensors",
    "ViewAndMutationMeta.subclass_fw_graph_out_meta, a comment",
)
SETUP = "A tensor-parallel block is compiled and run on batches of several sizes."
TORCH = Releases(since="2.12")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/185296", "open"),
    Public(
        "https://github.com/pytorch/pytorch/pull/185308",
        "closed, 'Align subclass output SymInt unwrapping with metadata'",
        "AOTAutograd symint output DTensor specialized after tracing",
        "2026-11-23",
    ),
)


def apply(patch: Patch) -> None:
    """Has both ways of capturing a graph do it again where it specialises what was counted."""
    from torch._functorch._aot_autograd import graph_compile

    for name in ("aot_dispatch_base_graph", "aot_dispatch_autograd_graph"):
        patch(graph_compile, name, functools.partial(_captured, getattr(graph_compile, name)))


def _captured(
    capture: Callable[..., Any],
    flat_fn: Any,
    args: Any,
    descs: Any,
    config: Any,
    *,
    fw_metadata: Any,
) -> Any:
    from torch._functorch._aot_autograd.collect_metadata_analysis import (
        run_functionalized_fw_and_collect_metadata,
    )
    from torch._functorch._aot_autograd.utils import without_output_descs

    before = list(args)
    captured = capture(flat_fn, args, descs, config, fw_metadata=fw_metadata)
    if not any(map(_is_specialised, fw_metadata.subclass_fw_graph_out_meta)):
        return captured
    collect = run_functionalized_fw_and_collect_metadata(
        without_output_descs(flat_fn),
        flat_args_descs=descs,
        static_input_indices=fw_metadata.static_input_indices,
        keep_input_mutations=fw_metadata.keep_input_mutations,
    )
    fw_metadata.subclass_fw_graph_out_meta = collect(*before).subclass_fw_graph_out_meta
    return capture(flat_fn, before, descs, config, fw_metadata=fw_metadata)


def _is_specialised(meta: Any) -> bool:
    """Whether a size that was symbolic when it was counted has one value only."""
    import torch

    sizes = (*getattr(meta, "outer_size", ()), *getattr(meta, "outer_stride", ()))
    return any(
        isinstance(size, torch.SymInt) and size.node.maybe_as_int() is not None for size in sizes
    )

"""What a Case needs beyond ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from fuzzshard.analysis.attention import lacks_kernels
from fuzzshard.analysis.check_dtypes import norms_half_precision_in_float32
from fuzzshard.analysis.dtypes import cuda_scales_gradients, cuda_steps_take_gradients
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.parts.engines import specs
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.option import WithOptions


def needs_cuda(case: Case) -> str | None:
    """Return why ``case`` cannot run on CPU ranks, in one line; None if it can."""
    for told in _told(case):
        if reason := told.needs_cuda():
            return reason
    if case.inputs.on_host:
        return "inputs on the host need CUDA to be moved to"
    if case.compile == "inductor":
        return "Inductor's kernels need CUDA: on the CPU each case would wait for a C++ compiler"
    return None


def _told(case: Case) -> Iterator[WithOptions[Any]]:
    """Yield what the engines and the optimizer of a case are told."""
    yield case.optimizer
    for spec in specs(case.engines):
        yield from case.wrap if spec.applies_groups else ()
        yield from [getattr(case, spec.options)] if spec.options else ()


def needs_cpu(case: Case) -> str | None:
    """Return why ``case`` cannot run on CUDA ranks, in one line; None if it can."""
    if norms_half_precision_in_float32(case, inferred(case)):
        return "CUDA's kernel of layer_norm takes no half precision beside parameters in float32"
    if case.optimizer.combines_elements and any(g.offload for g in case.wrap):
        return "steps of matrices communicate shards, which NCCL does not do on the host"
    if not cuda_steps_take_gradients(case, inferred(case)):  # _group_tensors_by_device_and_dtype
        return "with foreach, CUDA's default, steps want gradients of the dtype of the parameter"
    if not cuda_scales_gradients(case, inferred(case)):  # pytorch issue 127176
        return "CUDA's kernel that unscales gradients for a GradScaler takes none of bfloat16"
    if lacks_kernels(case):
        return "CUDA has no kernel of attention over a ring for it, or none in a finer precision"
    twice = LOSSES[case.loss].differentiates_twice
    evaluations = (at.op for at in follow(case) if not at.training)
    evaluated = any(op.takes or (op.begins and op.begins.grad) for op in evaluations)
    reasons = (
        leaf.lacks_backward(twice=twice, on_cuda=True, in_evaluation=evaluated)
        for leaf in inferred(case).leaves.values()
    )
    return next(filter(None, reasons), None)


def unfit_for(case: Case, device: Literal["cpu", "cuda"]) -> str | None:
    """Return why ``case`` cannot run on ranks of ``device``, in one line; None if it can."""
    return needs_cuda(case) if device == "cpu" else needs_cpu(case)

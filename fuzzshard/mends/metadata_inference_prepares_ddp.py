"""The metadata inference of a pipeline stage leaves DDP's reducer in the middle of an iteration.

A stage whose shapes are not given runs one forward and backward before the first iteration
(``_compute_outputs`` and ``_compute_input_grads`` in ``torch/distributed/pipelining/stage.py``).
All other forwards run within ``no_sync()`` (``forward_maybe_with_nosync``); this one does not, so
it prepares the reducer, and its backward, which is for inputs alone, never completes what was
prepared. The first microbatch is reduced then, and the last one is too. Where no forward comes
between them, as in GPipe, the reducer records the order of gradients twice, and the first forward
of the second iteration raises "rebuilt parameter indices size is not same as original model
parameters size" (``reducer.cpp``). Torch 2.11 inferred shapes under ``no_grad()``.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: the second iteration raises an internal assert of DDP"
COMPONENT = "DDP"
WEIGHT = "bug"
CONTRACT = Promise(
    "This helper should adapt any pipeline parallel schedule to work with common/supported data"
    " parallel libraries.",
    "torch.distributed.pipelining.stage._PipelineStageBase.backward_maybe_with_nosync",
)
SETUP = (
    "``PipelineStage(DistributedDataParallel(part), ...)`` without ``input_args``, ``ScheduleGPipe``"
    " or ``ScheduleLoopedBFS``, two microbatches or more, and a second iteration."
)
WORKAROUND = "Give PipelineStage its ``input_args`` and ``output_args``."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/177728",
        "brought the inference that runs a forward and a backward",
        'pipelining DDP stage "rebuilt parameter indices size is not same as original model'
        ' parameters size" PipelineStage metadata inference',
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining.stage:PipelineStage._compute_outputs",
        "return module(*args, **kwargs)",
        """
        if isinstance(module, DistributedDataParallel):
            with module.no_sync():
                return module(*args, **kwargs)
        return module(*args, **kwargs)
        """,
    ),
)

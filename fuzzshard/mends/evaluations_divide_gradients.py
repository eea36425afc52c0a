"""``schedule.eval()`` divides the gradients that there are by the number of microbatches.

GPipe and 1F1B end every run of microbatches with ``perform_reduce_grad``
(``torch/distributed/pipelining/schedules.py``), which asks for a backward where it reduces and not
where it scales: ``scale_grads`` divides whatever ``.grad`` the stage has. An evaluation between
``step()`` and the optimizer's step divides them once more, and so does each further one. Stages
under ``fully_shard`` mostly have none by then (``evaluations_clear_gradients``). Before 2.15, the
schedules of several stages do it too.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: eval() divides gradients by the number of microbatches again"
COMPONENT = "other"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Should only be called once per pipeline schedule step, after all backwards passes have"
    " completed.",
    "torch.distributed.pipelining.stage._PipelineStageBase.scale_grads",
)
SETUP = (
    "``schedule.step()`` of GPipe or 1F1B with the default ``scale_grads=True``, then"
    " ``schedule.eval()``, then ``optimizer.step()``."
)
WORKAROUND = "Evaluate after ``optimizer.zero_grad()``, or pass ``scale_grads=False``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/torchtitan/pull/1732",
        "near: every step() divides sums of several iterations",
        "pipelining schedule.eval() divides gradients perform_reduce_grad scale_grads without"
        " backward GPipe 1F1B gradients scaled twice",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining.stage:_PipelineStageBase.perform_reduce_grad",
        "if grad_scale_factor != 1:",
        "if grad_scale_factor != 1 and self.has_backward:",
    ),
)

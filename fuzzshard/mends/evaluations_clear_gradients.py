"""``schedule.eval()`` takes away the gradients of stages under ``fully_shard``.

A schedule that evaluates after an iteration, or trains after an evaluation, makes its stages anew,
and each of them runs a forward and a backward to learn shapes (``_initialize_pp_stages`` in
``torch/distributed/pipelining/schedules.py``). ``_post_metadata_inference_cleanup`` in
``stage.py`` then sets all gradients of ``fully_shard`` to None, as stale ones. That backward is
``autograd.grad`` for inputs alone, which leaves none but the zeros of
``set_reduce_scatter_unused_params(True)``. The others are the user's: what ``step()`` has computed
is gone after an ``eval()`` that comes before the optimizer's step, and so are sums over several
iterations. Stages under DDP keep theirs.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: eval() before the optimizer's step clears all gradients of fully_shard"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Run one forward-only iteration of the pipeline schedule. [...] temporarily disables backward"
    " execution.",
    "torch.distributed.pipelining.schedules._PipelineSchedule.eval",
)
SETUP = (
    "Gradients of several ``schedule.step()`` add up, and the stages are made anew between them:"
    " shapes change, or an ``eval()`` comes between. Only what follows is trained. So does an"
    " ``eval()`` between ``step()`` and ``optimizer.step()``."
)
WORKAROUND = "Evaluate after ``optimizer.zero_grad()``, or give PipelineStage its shapes."
TORCH = Releases(since="2.12")
PUBLIC = (
    Public(
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3530",
        "the same line, met where shapes change while gradients accumulate",
        "pipelining schedule.eval() FSDP gradients cleared None metadata inference"
        " _post_metadata_inference_cleanup",
        "2026-11-27",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/177728",
        "brought the inference and what clears after it",
        "pipelining eval between step and optimizer step gradients None fully_shard",
        "2026-11-27",
    ),
)
_STAGE = "torch.distributed.pipelining.stage:PipelineStage"
EDITS = (
    Edit(
        f"{_STAGE}._forward_metadata_inference",
        "kwargs = kwargs or {}",
        """
        kwargs = kwargs or {}
        for module in self.submod.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        self._gradients_before = [(param, param.grad) for param in self.submod.parameters()]
        """,
    ),
    Edit(
        f"{_STAGE}._post_metadata_inference_cleanup",
        """
        for module in self.submod.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
                for param in module.parameters():
                    param.grad = None
        """,
        """
        for module in self.submod.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for param, grad in self.__dict__.pop("_gradients_before", ()):
            param.grad = grad
        """,
    ),
)

"""A functional collective whose result nobody reads is kept for ever, and with it what its
checkpoint keeps.

Nothing waits for such a collective, so its work stays in the registry of works. Gloo's works hold
the state of the thread that they began in (``at::ThreadLocalState`` in ``ProcessGroupGloo.hpp``):
below a non-reentrant checkpoint that includes its hooks on saved tensors, which hold what it
recomputes, the module and its inputs. ``torch/distributed/_functional_collectives.py`` still
describes a finalizer of ``AsyncCollectiveTensor`` that cleans up; it was lost with the move of the
registry to C++. To wait where the last tensor of such a result goes is what it did.
"""

from collections import Counter

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "Functional collectives: what a checkpoint keeps is never freed when a result is not read"
COMPONENT = "other"
WEIGHT = "limitation"
CONTRACT = Promise(
    "we setup a finalizer against the tensor wrapper to observe it getting collected so we can "
    "clean up stale entries in the dictionary",
    "torch/distributed/_functional_collectives.py, a comment on what was moved to C++ since",
)
SETUP = (
    "Tensor parallelism on gloo with activation checkpointing, where a result is computed and "
    "not used: memory grows with every step."
)
WORKAROUND = "Wait for the result (``torch.distributed._functional_collectives.wait_tensor``)."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/torchtitan/issues/2763",
        "open; near: memory that tensor parallelism keeps with checkpointing",
        "ThreadLocalState ProcessGroupGloo AsyncWork saved tensors hooks kept alive leak unwaited "
        "functional collective",
        "2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/95897",
        "near: the finalizer that waited, in 2023",
        "functional collective AsyncCollectiveTensor never waited memory leak activation "
        "checkpoint saved tensors hooks gloo",
        "2026-11-23",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/119881", "near: chose to let works leak, at exit"
    ),
)


def apply(patch: Patch) -> None:
    """Gives wrappers of a result their finalizer back: the last one waits."""
    import torch
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    wrappers = Counter[int]()
    make = AsyncCollectiveTensor.__new__

    def new(cls: type[AsyncCollectiveTensor], elem: torch.Tensor) -> AsyncCollectiveTensor:
        if type(elem) is torch.Tensor:
            wrappers[elem.untyped_storage()._cdata] += 1
        made: AsyncCollectiveTensor = make(cls, elem)
        return made

    def finalize(self: AsyncCollectiveTensor) -> None:
        if type(self.elem) is not torch.Tensor:
            return
        storage = self.elem.untyped_storage()._cdata
        wrappers[storage] -= 1
        if wrappers[storage] <= 0:
            del wrappers[storage]
            if not self.completed:
                torch.ops._c10d_functional.wait_tensor(self.elem)

    patch(AsyncCollectiveTensor, "__new__", staticmethod(new))
    patch(AsyncCollectiveTensor, "__del__", finalize)

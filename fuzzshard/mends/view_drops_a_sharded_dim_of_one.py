"""A view refuses a DTensor whose sharded dim has size 1 and no counterpart in the result.

``view_groups`` (``torch/distributed/tensor/_ops/_view_ops.py``) pairs dims from the left, and what
is left over has size 1: of ``(1, 1, 1)`` to ``(1, 1)`` the last one, and of the gradient of a
bias, ``(1, 1)`` to ``(1,)``, as well. Where that one is sharded,
``_ViewShardingPropagator.analyze`` says that the view "would remove or reshape" it and raises, for
views must not redistribute. One element needs no redistribution that a view could not stand: it is
replicated, as it was in torch 2.12. ``nn.Linear`` makes such views by itself.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor.view: RuntimeError when the sharded dim has size 1"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Partition a compatible nn.Module in a row-wise fashion. Currently supports nn.Linear and "
    "nn.Embedding.",
    "RowwiseParallel",
)
SETUP = (
    "A head with one output (a reward, a value, a regression) is in a tensor-parallel plan. "
    "Torch 2.12 runs it."
)
WORKAROUND = "Leave the head out of the tensor-parallel plan."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/161950",
        "brought the error",
        "DTensor view op size-1 dimension would remove or reshape sharded dimension linear "
        "singleton dims RowwiseParallel",
        "2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/172102",
        "closed; near: the view in linear",
        "DTensor ColwiseParallel bias backward would remove or reshape sharded dimension "
        "aten.view size 1",
        "2026-11-22",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._view_ops:_ViewShardingPropagator.analyze",
        """
        if (
            self.strict_view
        """,
        """
        if (
            self.strict_view
            and self.global_input_shape[p.dim] != 1
        """,
    ),
)

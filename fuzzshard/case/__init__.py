"""The Case: what an experiment is. Imports nothing of ours but ``parts/``, and no torch. What
follows from a case is in :mod:`fuzzshard.analysis`.

``from fuzzshard.case import *`` is the names that cases are written with, and print as.
"""

from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    RankBatch,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Alias, Block, Call, Child, TensorOp
from fuzzshard.case.options import (
    DDP,
    FSDP1,
    SPMD,
    ContextParallel,
    Delay,
    Expect,
    ParameterDtype,
    Pipelining,
    Precision,
    TensorParallel,
)
from fuzzshard.parts.leaves import LEAVES
from fuzzshard.parts.ops import OPS

__all__ = [
    "DDP",
    "FSDP1",
    "SPMD",
    "Alias",
    "Block",
    "Call",
    "Case",
    "Checkpoint",
    "Child",
    "ContextParallel",
    "Delay",
    "Expect",
    "Freeze",
    "Inputs",
    "Mesh",
    "Optimizer",
    "ParameterDtype",
    "Pipelining",
    "Precision",
    "RankBatch",
    "TensorOp",
    "TensorParallel",
    "TensorSpec",
    "Tie",
    "WrapGroup",
]
for _part in (*LEAVES, *OPS):  # each in a file of its own, which is all that names it
    globals()[_part.__name__] = _part
    __all__ += [_part.__name__]

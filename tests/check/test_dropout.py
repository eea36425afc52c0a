"""Dropouts that draw other values in another precision, as those of CUDA do."""

from pathlib import Path

from user_models import Checked

from fuzzshard.subject.subject import Subject

MODEL = """
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

import fuzzshard.subject.run

dropout = functional.dropout


def dropout_by_dtype(x, *args, **kwargs):
    if x.dtype == torch.bfloat16:
        torch.rand(1)
    return dropout(x, *args, **kwargs)


functional.dropout = dropout_by_dtype
fuzzshard.subject.run.draws_by_dtype = lambda device: True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        q = self.dropout(self.linear(x))
        return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


def build():
    return Model()


def batch(step, dp_rank, dp_size):
    return torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(2 * step + dp_rank))


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def parallelize_wrongly(model, mesh):
    parallelize(model, mesh)
    model.set_requires_gradient_sync(False)
"""


def test_dropouts_that_draw_by_dtype_are_left_out(tmp_path: Path, checked: Checked) -> None:
    file = tmp_path / "draws.py"
    file.write_text(MODEL)
    functions = {"build": f"{file}:build", "inputs": f"{file}:batch"}
    right = checked(Subject(**functions, parallelize=f"{file}:parallelize")).trainings[0]
    assert right.difference is None
    assert "without dropout, which on CUDA draws other values" in " ".join(right.limits)
    wrong = checked(Subject(**functions, parallelize=f"{file}:parallelize_wrongly")).trainings[0]
    assert wrong.difference is not None
    assert wrong.difference.kind == "gradients"

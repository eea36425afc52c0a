"""Parameters that ``parallelize`` renames are compared with those of the plain model by --map."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import fuzzshard

from fuzzshard.errors import EXIT_CLEAN, EXIT_USAGE

RENAMING = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def build():
    return Model()


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def renaming(model, mesh):
    model.linear_in = model.first
    del model.first
    model.forward = lambda x: model.last(torch.tanh(model.linear_in(x)))
    return fully_shard(model, mesh=mesh)
"""
MAP = '{"linear_in.weight": "first.weight", "linear_in.bias": "first.bias"}'


def test_a_renamed_parameter_is_compared_under_its_plain_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, names = tmp_path / "train.py", tmp_path / "names.json"
    file.write_text(RENAMING)
    names.write_text(MAP)
    words = ["check", f"{file}:build", "--inputs", f"{file}:batch"]
    words += ["--parallelize", f"{file}:renaming", "--device", "cpu"]
    assert fuzzshard(*words) == EXIT_USAGE
    assert "no parameter first.bias; if it is renamed, say so with --map" in (
        capsys.readouterr().err
    )
    assert fuzzshard(*words, "--map", str(names)) == EXIT_CLEAN
    assert "parameters  16 bitwise equal" in capsys.readouterr().out

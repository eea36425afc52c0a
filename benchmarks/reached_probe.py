"""Preloaded by ranks: notes which lines of torch they run, for ``reached.py``."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from fuzzshard.mending.source import torch_folder

FOLDER = "FUZZSHARD_REACHED"
"""The environment variable that names the folder of the notes."""

SAVE_SECONDS = 10.0
"""A rank may die at any time, so it saves what it has noted this often."""

FILES = (
    *("distributed/fsdp/*", "distributed/_composable/*", "nn/parallel/distributed.py"),
    *("distributed/tensor/*", "distributed/pipelining/*", "distributed/device_mesh.py"),
    *("distributed/checkpoint/*", "distributed/optim/zero_redundancy_optimizer.py"),
    *("distributed/algorithms/*", "amp/grad_scaler.py", "nn/utils/clip_grad.py"),
    *("utils/checkpoint.py", "optim/swa_utils.py"),
)
"""Code that data-parallel training is made of, below the folder of torch."""


def apply() -> None:
    """Called once the rank has joined its world."""
    import coverage

    noted = coverage.Coverage(
        data_file=Path(os.environ[FOLDER], "rank"),
        data_suffix=True,
        include=[f"{torch_folder()}/{pattern}" for pattern in FILES],
        config_file=False,
        messages=False,
    )
    noted.start()

    def save() -> None:
        while True:
            time.sleep(SAVE_SECONDS)
            noted.save()

    threading.Thread(target=save, daemon=True).start()

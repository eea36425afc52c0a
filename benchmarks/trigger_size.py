"""How large a hand-written script is that shows a bug: it is run, and its model looked at in rank
0.

Run as a program, with a script and a file for the result, it counts while the script runs. The
script has to start its ranks by forking, and to end them with ``destroy_process_group``.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

SECONDS = 120.0
"""How long a script may run: without its bug, so it neither hangs nor raises."""


class ScriptSize(msgspec.Struct, frozen=True):
    """Leaf modules of the largest model that an engine wraps, forwards of such models, and
    ranks.
    """

    modules: int
    forwards: int
    ranks: int


def size_of_script(script: Path) -> ScriptSize | None:
    """The size of ``script``; None where it cannot be told."""
    with tempfile.TemporaryDirectory(prefix="fuzzshard-trigger-") as folder:
        result = Path(folder) / "size.json"
        command = [sys.executable, __file__, str(script.resolve()), str(result)]
        silent = subprocess.DEVNULL
        with subprocess.Popen(
            command, stdout=silent, stderr=silent, start_new_session=True
        ) as running:
            try:
                running.wait(SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)  # its ranks too
        try:
            return msgspec.json.decode(result.read_bytes(), type=ScriptSize)
        except (OSError, msgspec.MsgspecError):
            return None


def main() -> None:
    """Counts in this process and the ranks that it forks."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    script, result = Path(sys.argv[1]), Path(sys.argv[2])
    engines = (FSDPModule, FullyShardedDataParallel, DistributedDataParallel)
    called: dict[nn.Module, int] = {}
    depth = 0
    call, destroy = nn.Module.__call__, dist.destroy_process_group

    def counting_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth == 0 and any(isinstance(m, engines) for m in module.modules()):
            called[module] = called.get(module, 0) + 1
        depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth -= 1

    def counting_destroy(*args: Any, **kwargs: Any) -> None:
        if dist.get_rank() == 0:
            within = {m for model in called for m in model.modules() if m is not model}
            models = [
                model for model in called if model not in within
            ]  # recomputing calls parts of them
            leaves = [sum(not any(m.children()) for m in model.modules()) for model in models]
            forwards = sum(called[model] for model in models)
            size = ScriptSize(max(leaves, default=0), forwards, dist.get_world_size())
            result.write_text(json.dumps(msgspec.to_builtins(size)))
        destroy(*args, **kwargs)

    nn.Module.__call__ = counting_call  # type: ignore[method-assign,assignment]
    dist.destroy_process_group = counting_destroy
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()

"""Runs scripts on ranks forked from one process that has torch already: a second, where torchrun
takes five.

``python -m fuzzshard.reproducer.forked_ranks`` reads lines of JSON ``{"script": ..., "ranks": ...,
"preload": [...], "mends": [...], "seconds": ..., "abrupt": ...}`` and answers with ``{"codes":
[...], "output": ...}``; a code is None for a rank that was killed since another one failed or time
was up. Ranks end as interpreters do, so a crash at exit shows, but for ``abrupt`` ones.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, NoReturn

from fuzzshard.guard import adopt_orphans, die_with_parent, end_children

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed._composable.checkpoint_activation",
    "torch.distributed._composable.replicate",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel.distributed",
    "torch.utils.checkpoint",
    "fuzzshard.mending.patch",
)


def _become_rank(request: dict[str, Any], rank: int, port: int, output: int) -> NoReturn:
    os.dup2(output, 1)
    os.dup2(1, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(request["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    die_with_parent()
    importlib.import_module("torch").set_num_threads(1)
    for path in request["preload"]:
        runpy.run_path(path)["apply"]()
    if request["mends"]:
        from fuzzshard.mending.patch import Mended

        Mended().switch(tuple(request["mends"]), compiles=True)
    if not request["abrupt"]:
        runpy.run_path(request["script"], run_name="__main__")
        sys.exit(0)
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _wait(pids: list[int], seconds: float) -> list[int | None]:
    """Return exit codes in rank order; kill the others a moment after the first one failed."""
    codes: dict[int, int | None] = {}
    limit = time.monotonic() + seconds
    while len(codes) < len(pids) and time.monotonic() < limit:
        for pid in set(pids) - codes.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    limit = min(limit, time.monotonic() + 1)
        time.sleep(0.005)
    for pid in set(pids) - codes.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [codes.get(pid) for pid in pids]


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    port = importlib.import_module("torch.distributed.elastic.utils.distributed").get_free_port()
    with contextlib.ExitStack() as stack:
        pids, outputs = [], []
        for rank in range(request["ranks"]):
            output = stack.enter_context(tempfile.TemporaryFile(mode="w+", errors="replace"))
            outputs.append(output)
            pid = os.fork()
            if pid == 0:
                _become_rank(request, rank, port, output.fileno())
            pids.append(pid)
        codes = _wait(pids, request["seconds"])
        end_children()
        for output in outputs:
            output.seek(0)
        return {"codes": codes, "output": "".join(output.read() for output in outputs)}


def main() -> None:
    """Import torch, and answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    adopt_orphans()
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

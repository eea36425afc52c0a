"""Runs scripts on ranks forked from one process that has torch already: a second, where torchrun
takes five.

Reads lines of JSON ``{"script": ..., "ranks": ..., "preload": [...], "seconds": ...}`` and answers
with ``{"codes": [...], "output": ...}``; a code is None for a rank that was killed since another
one failed or time was up. Ranks end as interpreters do, so a crash at exit shows.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time

import torch
import torch._dynamo
import torch.distributed._composable.checkpoint_activation
import torch.distributed._composable.replicate
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.nn.parallel.distributed
import torch.utils.checkpoint


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def become_rank(request: dict, rank: int, port: int, output: int) -> None:
    os.dup2(output, 1)
    os.dup2(1, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(request["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    for path in request["preload"]:
        runpy.run_path(path)["apply"]()
    runpy.run_path(request["script"], run_name="__main__")


def wait(pids: list[int], seconds: float) -> list[int | None]:
    """Exit codes in rank order; kills the others a moment after the first one failed."""
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


def serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        port = free_port()
        output = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115
        pids = []
        for rank in range(request["ranks"]):
            pid = os.fork()
            if pid == 0:
                become_rank(request, rank, port, output.fileno())
                sys.exit(0)
            pids.append(pid)
        codes = wait(pids, request["seconds"])
        output.seek(0)
        print(json.dumps({"codes": codes, "output": output.read()}), flush=True)
        output.close()


if __name__ == "__main__":
    serve()

"""With ``defer_pp_recv`` a rank takes one microbatch's tensor for another's.

Pipeline schedules send without tags, so that the tensors of two ranks are told apart by their
order alone: ``_add_send_recv`` (``torch/distributed/pipelining/schedules.py``) puts the receives
of a rank from a peer in the order in which the peer sends. ``_defer_recv_ops`` then moves each
one to right before the action that consumes it, also past another receive from the same peer that
is consumed earlier. An activation is then taken for a gradient, or for that of another stage or
microbatch. Where the shapes are equal, nobody notices; elsewhere ranks raise or hang. Up to four
ranks and twelve microbatches, zero bubble schedules consume in another order than their peers send
in, and so does ``ScheduleDualPipeV`` from three ranks on; others do not.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: wrong gradients with defer_pp_recv, as receives overtake each other"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "``defer_pp_recv`` moves each receive next to its consuming compute action.",
    "torch.distributed.pipelining.schedules._PipelineScheduleRuntime",
)
SETUP = (
    "``defer_pp_recv=True`` of ``ScheduleInterleavedZeroBubble``, ``ScheduleZBVZeroBubble`` or"
    " ``ScheduleDualPipeV``."
)
WORKAROUND = "Leave ``defer_pp_recv`` at its default."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

dist.init_process_group("gloo")
rank, microbatches = dist.get_rank(), 4
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
gradients = []
for late in (False, True):
    model.zero_grad()
    stages = [PipelineStage(model[i], i, 4, torch.device("cpu")) for i in (rank, rank + 2)]
    schedule = ScheduleInterleavedZeroBubble(
        stages,
        microbatches,
        loss_fn=lambda out, number: (out**2).sum() * (number + 1),
        defer_pp_recv=late,
    )
    torch.manual_seed(1)
    x = torch.randn(8, 4)
    schedule.step(*([x] if rank == 0 else []), target=torch.arange(microbatches))
    gradients.append([p.grad.clone() for stage in stages for p in stage.submod.parameters()])
for here, there in zip(*gradients):
    torch.testing.assert_close(there, here)
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/178815",
        "brought, closed: 'Defer pipeline RECV ops with rank-parity deadlock avoidance'",
        "pipelining defer_pp_recv zero bubble schedule wrong gradients",
        "2026-11-29",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/188833",
        "near, open: where receives come in a schedule, and how long they take",
        "torch.distributed.pipelining RECV_B deferred until backward BACKWARD_INPUT gradients"
        " silently wrong InterleavedZeroBubble ZBV",
        "2026-11-29",
    ),
)
_CONSUMES = """\
    key = (sub.stage_index, {}, sub.microbatch_index)
    if key in deferred:
"""
_TAKES = "        new_actions.append(deferred.pop(key))\n"
_IN_ORDER = """\
        peer = _recv_peer_rank(deferred[key])
        queue = [k for k, v in deferred.items() if _recv_peer_rank(v) == peer]
        for earlier in queue[: queue.index(key) + 1]:
            new_actions.append(deferred.pop(earlier))
"""
EDITS = tuple(
    Edit(
        "torch.distributed.pipelining.schedules:_defer_recv_ops",
        _CONSUMES.format(kind) + _TAKES,
        _CONSUMES.format(kind) + _IN_ORDER,
    )
    for kind in ("RECV_F", "RECV_B")
)

"""Neighbouring stages of one rank connect to each other by the backend, which gloo cannot.

Before the first iteration every stage sends to the ranks of the next stage and of the one before
(``_get_init_p2p_neighbors_ops`` in ``torch/distributed/pipelining/stage.py``), also if that is its
own. What stages of one rank pass on later goes around the process group (``set_local_fwd_input``).
The first and the second stage of schedules that lie as a V are on one rank in the middle, and
gloo has no pair of a rank with itself: "Pair is not connected".
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: two neighbouring stages on one rank cannot connect with gloo"
COMPONENT = "other"
CONTRACT = Promise(
    "The `PipelineStage` is responsible for allocating communication buffers and creating"
    " send/recv ops to communicate with its peers.",
    "docs/source/distributed.pipelining.md, Step 1",
)
SETUP = "``ScheduleZBVZeroBubble`` on the CPU, or a schedule of several stages on one rank."
WORKAROUND = "Use torch 2.13, or a schedule whose neighbouring stages are on different ranks."
TORCH = Releases(since="2.11", until="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/160210",
        "brought the connections before the first iteration",
        'pipelining gloo _get_init_p2p_neighbors_ops same rank stages send to self "Pair is not'
        ' connected" batch_isend_irecv interleaved one rank',
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.pipelining.stage:_PipelineStageBase._get_init_p2p_neighbors_ops",
        "return ops",
        "return [op for op in ops if op.group_peer != self.group_rank]",
    ),
)

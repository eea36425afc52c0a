"""Stages of a pipeline send, and receive into, tensors that are not contiguous.

A buffer for what another stage sends is made with the strides of the activation or gradient that
the first iteration saw (``_make_tensor_from_meta``, called by ``_RecvInfo.allocate_buffer`` in
``torch/distributed/pipelining/_recv_buffers.py``), and what is sent goes as it is
(``to_local_if_dtensor`` in ``torch/distributed/pipelining/_utils.py``). The gradient of an input
that a stage transposes first is not contiguous, and gloo refuses it ("input tensor has to be
contiguous", ``ProcessGroupGloo.cpp``). That of an input that is only added to something, with a
loss that is a sum, has strides of 0: its buffer has one element.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: an activation or gradient between stages that is not contiguous is refused"
COMPONENT = "other"
CONTRACT = Promise(
    "The `PipelineStage` is responsible for allocating communication buffers and creating"
    " send/recv ops to communicate with its peers.",
    "docs/source/distributed.pipelining.md, Step 1",
)
SETUP = "A stage begins with a convolution over a sequence, so that it transposes its input."
WORKAROUND = "Begin a stage with ``x * 1.0``, whose gradient is contiguous."
TORCH = Releases(since="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/114982",
        "near: NCCL no longer refuses to send tensors that are not contiguous",
        "pipelining stage input tensor has to be contiguous irecv isend non-contiguous activation"
        " gradient PipelineStage",
        "2026-11-27",
    ),
)
_PIPELINING = "torch.distributed.pipelining"
EDITS = (
    Edit(
        f"{_PIPELINING}._recv_buffers:_RecvInfo.allocate_buffer",
        "self.buffer = _make_tensor_from_meta(self.tensor_meta, device)",
        "self.buffer = _make_tensor_from_meta(self.tensor_meta, device).contiguous()",
    ),
    Edit(
        f"{_PIPELINING}._utils:to_local_if_dtensor",
        "return maybe_detached_tensor",
        "return maybe_detached_tensor.contiguous()",
    ),
)

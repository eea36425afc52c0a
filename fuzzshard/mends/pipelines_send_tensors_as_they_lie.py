"""Stages of a pipeline send, and receive into, tensors that are not contiguous.

A buffer for what another stage sends is made with the strides of the activation or gradient that
the first iteration saw (``_make_tensor_from_meta`` in ``torch/distributed/pipelining/_utils.py``),
and what is sent goes as it is (``to_local_if_dtensor`` there). The gradient of an input that a
stage transposes first is not contiguous, and gloo refuses it ("input tensor has to be
contiguous", ``ProcessGroupGloo.cpp``). That of an input that is only added to something, with a
loss that is a sum, has strides of 0: its buffer has one element.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "pipelining: an activation or gradient between stages that is not contiguous is refused"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "The `PipelineStage` is responsible for allocating communication buffers and creating"
    " send/recv ops to communicate with its peers.",
    "docs/source/distributed.pipelining.md, Step 1",
)
SETUP = "A stage begins with a convolution over a sequence, so that it transposes its input."
WORKAROUND = "Begin a stage with ``x * 1.0``, whose gradient is contiguous."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3318",
        "the same of a gradient of stride 0, which NCCL refuses",
        date="2026-11-28",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/114982",
        "near: NCCL no longer refuses to send tensors that are not contiguous",
        "pipelining stage input tensor has to be contiguous irecv isend non-contiguous activation"
        " gradient PipelineStage",
        "2026-11-27",
    ),
)
_UTILS = "torch.distributed.pipelining._utils"
EDITS = (
    Edit(
        f"{_UTILS}:_make_tensor_from_meta",
        "return torch.empty_strided(\n    size=meta.shape,\n    stride=meta.stride,",
        "return torch.empty(\n    size=meta.shape,",
    ),
    Edit(
        f"{_UTILS}:to_local_if_dtensor",
        "return maybe_detached_tensor",
        "return maybe_detached_tensor.contiguous()",
    ),
)

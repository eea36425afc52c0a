"""The gradient that GroupNorm gives a DTensor says strides that its local tensor does not have.

DTensor learns strides from fake tensors. For the backward of group norm these run
``native_group_norm_backward`` of torch/_decomp/decompositions.py, which reshapes what its last
sum was laid out like, while the kernel allocates a contiguous result. What asks for a view of the
gradient, such as a linear layer over sequences, gets one that the local tensor does not allow.
Torch 2.15 makes the decomposition contiguous.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: the backward of a linear layer in front of GroupNorm over sequences raises"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "``DTensor`` (Distributed Tensor) is a subclass of ``torch.Tensor`` that provides single-device "
    "like abstraction to program with multi-device ``torch.Tensor``",
    "DTensor",
)
SETUP = "A model on DTensors has a GroupNorm over the transposed output of a linear layer."
WORKAROUND = "Use torch 2.15, or ``.contiguous()`` on the input of the GroupNorm."
TORCH = Releases(since="2.14", until="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/186414",
        "near: closed; lets the kernels of group norm take tensors that are not contiguous",
        "native_group_norm_backward decomposition view reshape non-contiguous grad_output DTensor "
        "GroupNorm view size is not compatible",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch._decomp.decompositions:native_group_norm_backward",
        "d_input = d_input.reshape(input.shape).to(input.dtype)",
        """
        d_input = d_input.reshape(input.shape).to(input.dtype)
        d_input = d_input.contiguous(memory_format=utils.suggest_memory_format(input))
        """,
    ),
)

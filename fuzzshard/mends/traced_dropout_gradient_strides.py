"""A trace takes the gradient of dropout to be contiguous, which it is on CUDA only.

``native_dropout_backward`` in ``torch/_decomp/decompositions.py`` clones its result into the
memory format that the gradient suggests, "mimicking CUDA kernel's behavior". The kernel of the CPU
multiplies (``native_dropout_backward`` in ``aten/src/ATen/native/Dropout.cpp``), and the result
has the strides of the gradient. What follows in the graph, as the view in a linear layer's
backward, is chosen for strides that the real tensor does not have.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "torch.compile: a view fails in backward when the gradient of dropout on the CPU is not "
    "contiguous"
)
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "backends MUST match original eager striding exactly", "ezyang, pytorch issue 93648"
)
SETUP = "A compiled model with dropout is trained on the CPU, as in a test."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 88761, which made it mimic CUDA, and issue 120035 (open), views of "
        "aot_eager",
        query="native_dropout_backward decomposition stride mismatch aot_eager view size is not "
        "compatible",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch._decomp.decompositions:native_dropout_backward",
        """
        r = (grad_output * (mask.type_as(grad_output) * scale)).clone(
            memory_format=utils.suggest_memory_format(grad_output)
        )
        """,
        """
        r = grad_output * (mask.type_as(grad_output) * scale)
        if grad_output.device.type != "cpu":
            r = r.clone(memory_format=utils.suggest_memory_format(grad_output))
        """,
    ),
)

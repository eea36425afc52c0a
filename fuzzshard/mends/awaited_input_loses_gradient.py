"""AOTAutograd takes an input that a collective still fills for one that requires no gradient.

``process_inputs`` in ``torch/_functorch/_aot_autograd/frontend_utils.py`` waits for an
``AsyncCollectiveTensor`` and traces with what it wraps, which never requires a gradient: autograd
knows the wrapper. So the graph computes no gradient for that input, and what comes before gets
none, or zeros that are no DTensor. Such an input comes from a tensor-parallel module that ran
uncompiled, as after the eighth recompilation, or within a checkpoint. At run time the wrapper is
waited for within the compiled autograd function, so what is traced with need only require a
gradient where the wrapper does.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: the gradient of an input is lost when a collective still fills the input"
COMPONENT = "compile"
WEIGHT = "bug"
CONTRACT = Promise(
    "Traces the forward and backward graph of :attr:`fn` using torch dispatch mechanism, and then "
    "compiles the generated forward and backward graphs",
    "torch/_functorch/aot_autograd.py, aot_function",
)
SETUP = (
    "A tensor-parallel layer runs uncompiled, after the eighth recompilation or within a "
    "checkpoint, and what follows it is compiled. What comes before the layer trains with "
    "gradients of zero, or with none."
)
TORCH = Releases(since="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/191113",
        "closed; the gradient that is lost",
        "AsyncCollectiveTensor input torch.compile gradient lost trigger_wait AOTAutograd "
        "requires_grad",
        "2026-11-23",
    ),
    Public("https://github.com/pytorch/pytorch/pull/179849", "merged in 2.12, brought it"),
)
EDITS = (
    Edit(
        "torch._functorch._aot_autograd.frontend_utils:process_inputs",
        """
        flat_args[i] = a.trigger_wait()
        """,
        """
        flat_args[i] = a.trigger_wait().detach().requires_grad_(a.requires_grad)
        """,
        Releases(until="2.14"),
    ),
    Edit(
        "torch._functorch._aot_autograd.frontend_utils:process_inputs",
        """
        if resolved_arg is not a and isinstance(resolved_arg, torch.Tensor):
        """,
        """
        if resolved_arg is not a and isinstance(resolved_arg, torch.Tensor):
            resolved_arg = resolved_arg.detach().requires_grad_(a.requires_grad)
        """,
        Releases(since="2.14"),
    ),
)

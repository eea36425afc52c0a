"""A mean square, and a penalty on the gradients of inputs."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.loss import Loss, Term
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import NEW_CHOICES

_PENALIZED = """
def penalized(output, *inputs):  # the gradients of inputs are to be small
    loss = output.square().mean()
    if not (inputs and loss.requires_grad):
        return loss
    grads = torch.autograd.grad(output.sum(), inputs, create_graph=True, allow_unused=True)
    return sum((grad.square().sum() for grad in grads if grad is not None), loss)
"""


class GradientPenalty(Loss):
    """The mean square of the outputs, and the squares of what they differentiate inputs to.

    Critics of GANs are trained so (https://arxiv.org/abs/1801.04406), and networks for forces: a
    backward goes through a backward. Of DDP "the least bad practice for interoperating
    double-backward use cases (eg gradient penalty)" is ``torch.autograd.grad(...,
    create_graph=True)``, then "an ordinary backward() on the penalty+whatever else"
    (https://github.com/pytorch/pytorch/issues/63812).
    """

    name = "gradient_penalty"
    meaning = "the mean square of the outputs, and a penalty on the gradients of inputs"
    place = 4
    least_rows, why = 1, "the mean of nothing is NaN"
    extension = Choice(
        "gradient_penalty",
        4,
        105,
        # what DDP has nothing for, or nothing promises: no engine would be judged with it
        excludes=(
            *("tensor", "checkpoint", "compile", "other_dtypes", "toggle"),
            *("non_root_forward", "partial_sync", "backward_order", "retain_graph"),
            *NEW_CHOICES,
        ),
    )
    differentiates_twice = True
    sources = {"penalized": _PENALIZED}

    @override
    def text(self, term: Term) -> str:
        return f"penalized({', '.join((term.output, *term.inputs))})"

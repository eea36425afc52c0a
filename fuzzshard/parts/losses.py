"""The losses: every class here is one."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.loss import Loss as Loss
from fuzzshard.parts.loss import Term
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import NEW_CHOICES


class Sum(Loss):
    """The sum of the outputs, whose gradient is 1 everywhere."""

    name, meaning = "sum", "the sum of the outputs"
    place, percent, is_simpler, is_exact = 0, 30, False, True

    @override
    def text(self, term: Term) -> str:
        return f"{term.output}.sum()"


class Dot(Loss):
    """A dot product with a target, whose gradient differs everywhere; a sum without a target."""

    name, meaning = "dot", "a dot product with a target"
    place, percent, is_exact = 1, 55, True

    @override
    def text(self, term: Term) -> str:
        return f"({term.output} * {term.target}).sum()" if term.target else f"{term.output}.sum()"


class MeanSquare(Loss):
    """The mean square of the outputs."""

    name, meaning = "mean_square", "the mean square of the outputs"
    place, percent = 2, 60
    least_rows, why = 1, "the mean of nothing is NaN"

    @override
    def text(self, term: Term) -> str:
        return f"{term.output}.square().mean()"


_TOKEN_LOSS = """
def token_loss(logits, ignored, tokens, mean=False):  # over all ranks it is the mean of tokens
    if logits.ndim > 2:
        logits = logits.flatten(0, -2)
    labels = torch.arange(len(logits), device=logits.device) % logits.shape[-1]
    labels[:ignored] = -100
    if mean and (kept := len(labels[ignored:])):
        return nn.functional.cross_entropy(logits, labels) * kept / tokens
    return nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens
"""


class TokenMean(Loss):
    """Cross entropy over the tokens of all ranks, of which rank ``r`` ignores the first ``r``.

    Engines average over ranks, so a sum of losses divided by the average number of tokens gives
    the mean over the tokens of all ranks (the fix of
    https://github.com/huggingface/transformers/pull/46775).
    """

    name = "token_mean"
    meaning = "cross entropy over the tokens of all ranks, some of which are ignored"
    place = 3
    sources = _TOKEN_LOSS

    @override
    def text(self, term: Term) -> str:
        return f"token_loss({term.output}, {term.rank}, {mean_tokens(term)})"


def mean_tokens(term: Term, *, ignored: int = 0) -> float:
    """Return the tokens whose target is not ignored, averaged over data-parallel ranks; 1 where
    there are none. Rank 0 has ``ignored`` that are.
    """
    kept = [
        max(tokens - ignored - (0 if term.same_on_ranks else rank), 0)
        for rank, tokens in enumerate(term.tokens)
    ]
    return sum(kept) / len(kept) or 1.0


_SHARE_CLASSES = """
def share_classes(logits, mesh):
    if mesh is not None and not isinstance(logits, DTensor):
        logits = DTensor.from_local(logits, mesh, [Replicate()])
    if mesh is not None:
        logits = logits.redistribute(placements=[Shard(logits.ndim - 1)])
    return logits.flatten(0, -2) if logits.ndim > 2 else logits
"""

_PARALLEL_TOKEN_LOSS = """
def parallel_token_loss(logits, ignored, tokens, mesh, mean=False):  # ranks share the classes
    return token_loss(share_classes(logits, mesh), ignored, tokens, mean)
"""

_WEIGHTED_TOKEN_LOSS = """
def weighted_token_loss(logits, ignored, tokens, mesh=None):
    logits = share_classes(logits, mesh)
    labels = torch.arange(len(logits), device=logits.device) % logits.shape[-1]
    labels[:ignored] = -100
    weight = torch.linspace(0.5, 2, logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return nn.functional.cross_entropy(logits, labels, weight, reduction="sum") / tokens
"""

_LOSS_OF_EACH_TOKEN = """
def loss_of_each_token(logits, ignored, tokens, mesh=None):  # tokens of class 0 are ignored, too
    logits = share_classes(logits, mesh)
    labels = torch.arange(len(logits), device=logits.device) % logits.shape[-1]
    labels[:ignored] = 0
    losses = nn.functional.cross_entropy(logits, labels, ignore_index=0, reduction="none")
    return losses.square().sum() / tokens
"""


class LossParallel(Loss):
    """``TokenMean``, of classes that tensor-parallel ranks share. Every rank ignores a token of
    several.

    "Within this context manager, one can use cross_entropy() or CrossEntropyLoss as usual"
    (``loss_parallel``), where the logits are "sharded on the class dimension".
    """

    name = "loss_parallel"
    meaning = "cross entropy of classes that tensor-parallel ranks share, under loss_parallel()"
    place = 4
    context = "loss_parallel()"
    sources = _SHARE_CLASSES + _PARALLEL_TOKEN_LOSS

    called, plain, more = "parallel_token_loss", "token_loss", ""

    @override
    def text(self, term: Term) -> str:
        first = int(min(term.tokens) > 1)
        ignored = f"{term.rank} + 1" if first else term.rank
        told = f"{term.output}, {ignored}, {mean_tokens(term, ignored=first)}"
        if term.mesh:
            return f"{self.called}({told}, {term.mesh}{self.more})"
        return f"{self.plain}({told})"


class LossParallelMean(LossParallel):
    """``LossParallel`` with ``reduction="mean"``, which leaves ignored tokens out."""

    name = "loss_parallel_mean"
    meaning = "the same with reduction='mean'"
    more = ", mean=True"


class LossParallelWeighted(LossParallel):
    """``LossParallel`` of classes that have weights."""

    name = "loss_parallel_weighted"
    meaning = "the same with a weight= of classes"
    sources = _WEIGHTED_TOKEN_LOSS
    called = plain = "weighted_token_loss"


class LossParallelOfEach(LossParallel):
    """``LossParallel`` with ``reduction="none"``, of which the squares are summed, and a class as
    ``ignore_index``.
    """

    name = "loss_parallel_of_each"
    meaning = "the same with reduction='none' and an ignore_index"
    sources = _LOSS_OF_EACH_TOKEN
    called = plain = "loss_of_each_token"


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
    place = 5
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
    sources = _PENALIZED

    @override
    def text(self, term: Term) -> str:
        return f"penalized({', '.join((term.output, *term.inputs))})"


class DoubledInPlace(Loss):
    """A dot product of outputs and a target, once outputs are doubled in place.

    DDP clones outputs so that a user may do so: "this can be set to False if you are not
    modifying the loss in place" (``_set_ddp_sink_clone``).
    """

    name, meaning = "doubled_in_place", "outputs that are doubled in place, times a target"
    place, is_exact = 6, True
    late_percent = 20
    changes_outputs = True

    @override
    def text(self, term: Term) -> str:
        doubled = f"{term.output}.mul_(2)"
        return f"({doubled} * {term.target}).sum()" if term.target else f"{doubled}.sum()"


_ALL = (*Loss.__subclasses__(), *LossParallel.__subclasses__())
LOSSES: dict[str, Loss] = {loss.name: loss() for loss in sorted(_ALL, key=lambda loss: loss.place)}
"""By name, in the order in which one is drawn."""

DEFAULT = "dot"
"""What a case has unless it says otherwise."""
SIMPLEST: str = next(iter(LOSSES))
"""The one whose gradient is 1 everywhere."""

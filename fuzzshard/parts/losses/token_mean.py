"""Cross entropy, normalised over the tokens of all ranks."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.loss import Loss, Term

_TOKEN_LOSS = """
def token_loss(logits, ignored, tokens):  # averaged over ranks it is the mean over all tokens
    logits = logits.flatten(0, -2)
    labels = torch.arange(len(logits), device=logits.device) % logits.shape[-1]
    labels[:ignored] = -100
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
    sources = {"token_loss": _TOKEN_LOSS}

    @override
    def text(self, term: Term) -> str:
        return f"token_loss({term.output}, {term.rank}, {mean_tokens(term)})"


def mean_tokens(term: Term) -> float:
    """Return the tokens whose target is not ignored, averaged over data-parallel ranks; 1 where
    there are none.
    """
    kept = [
        max(tokens - (0 if term.same_on_ranks else rank), 0)
        for rank, tokens in enumerate(term.tokens)
    ]
    return sum(kept) / len(kept) or 1.0

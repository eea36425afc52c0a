"""A dropout of a tensor without elements hands on the graph of its input under ``no_grad``.

``dropout`` returns its input itself where that has no elements (``_dropout_impl`` in
``aten/src/ATen/native/Dropout.cpp``), in training and under ``no_grad`` as well. The result then
requires gradients, while that of any other batch does not. A rank with an empty batch so trains
what comes before the dropout, with gradients of zeros, and its peers do not: DDP reduces these
parameters, whose gradients would be None.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "Dropout: the result requires gradients under no_grad when the input has no elements"
COMPONENT = "other"
CONTRACT = Promise(
    "In this mode, the result of every computation will have `requires_grad=False`, even when "
    "the inputs have `requires_grad=True`.",
    "torch.no_grad",
)
SETUP = (
    "A block with a dropout runs under ``no_grad`` while it trains, and one rank has an empty "
    "batch: a last, uneven part of the data or an expert without tokens."
)
WORKAROUND = "Call ``detach()`` on what the block returns."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="dropout empty tensor no_grad returns input requires_grad True",
        date="2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.nn.functional:dropout",
        """
        if p < 0.0 or p > 1.0:
        """,
        """
        if training and not inplace and not input.numel() and not torch.is_grad_enabled():
            return input.detach()
        if p < 0.0 or p > 1.0:
        """,
    ),
)

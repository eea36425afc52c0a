"""A traced dropout in eval mode returns a copy of its input, which has no gradient under
``no_grad``.

``dropout`` returns its input itself where it drops nothing, also under ``no_grad``: what comes
after gives the input gradients. Its decomposition, which AOTAutograd traces (``dropout`` in
``torch/_decomp/decompositions.py``), returns ``input.clone()`` until torch 2.14, and under
``no_grad`` the copy requires no gradient.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: gradients are lost when a dropout in eval mode runs under no_grad"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Furthermore, the outputs are scaled by a factor of :math:`\\frac{1}{1-p}` during training. "
    "This means that during evaluation the module simply computes an identity function.",
    "torch.nn.Dropout",
)
SETUP = (
    "A frozen part of a compiled model is in eval mode and under ``no_grad``, and hands on an "
    "input that needs gradients."
)
TORCH = Releases(since="2.11", until="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/115249",
        "the copy; fixed in torch 2.14",
        "torch.compile aot_eager dropout eval no_grad region gradient lost input returned as is",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch._decomp.decompositions:dropout",
        """
        return input.clone()
        """,
        """
        return input
        """,
    ),
)

"""A graph merges two equal calls that return several tensors each, though it returns results of
both.

``fx_graph_cse`` in ``torch/_functorch/compile_utils.py`` merges equal calls, and leaves those
alone whose result the graph returns. It goes by the storage of a call's result, and a call that
returns several tensors, as layer norm does, has none. Where one of the two was under ``no_grad``,
the one tensor is marked as not differentiable for both, and the backward of what comes next gets
None. Such a call has to be left alone where one of the tensors that are taken out of it is
returned.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A graph returns one tensor for a call under no_grad and the same call with gradients"
COMPONENT = "compile"
CONTRACT = Promise(
    "This prevents us from deduplicating returned tensors which have experienced identical "
    "operations, but "
    "are separate data structures in eager mode",
    "fx_graph_cse, a comment",
)
TORCH = Releases(since="2.11", until="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/114344",
        "closed: nodes that return one tensor are kept apart since, those that return several are "
        "not",
    ),
)
EDITS = (
    Edit(
        "torch._functorch.compile_utils:fx_graph_cse",
        """
        or n in nodes_that_alias_outputs
        """,
        """
        or n in nodes_that_alias_outputs
        or any(u in nodes_that_alias_outputs and u.target is operator.getitem for u in n.users)
        """,
    ),
)

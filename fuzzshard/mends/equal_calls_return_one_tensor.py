"""A graph merges two equal calls that return several tensors each, though it returns results of
both.

``fx_graph_cse`` in ``torch/_functorch/compile_utils.py`` merges equal calls, except those whose
result the graph returns. It finds these by the storage of the result. A call that returns several
tensors, such as layer norm, has no storage, so it is merged although the graph returns one of its
tensors. If one of the two calls was under ``no_grad``, the merged tensor is marked as not
differentiable for both, and the backward of what uses it gets None. A call must not be merged if
any of its tensors is returned.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: backward gets None when a call under no_grad equals one with gradients"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "This prevents us from deduplicating returned tensors which have experienced identical "
    "operations, but are separate data structures in eager mode",
    "fx_graph_cse, a comment",
)
SETUP = (
    "A layer norm runs twice on the same input in one graph, once under ``no_grad`` for a "
    "metric or a target."
)
WORKAROUND = "Compute what is under ``no_grad`` outside of the compiled region."
TORCH = Releases(since="2.11", until="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/114344",
        "closed, near: nodes that return one tensor are kept apart since, those that return several are "
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

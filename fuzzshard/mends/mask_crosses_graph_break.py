"""Dynamo traces what reduces an embedding split by rows with the mask of a lookup that ran outside
the graph.

The placement of such a lookup's result holds a mask of the indices until the result is reduced
(``_MaskPartial`` in ``torch/distributed/tensor/placement_types.py``). The mask is no inner tensor
of the DTensor. Where the lookup ran outside the graph, as in a module whose hooks break it, Dynamo
makes a fake tensor of the result, and the mask stays a real one, or there is none. Even an empty
mask differs from its copy, with which a guard compares it. A DTensor that waits for such a mask
cannot be an input of a graph (``VariableBuilder.wrap_tensor`` in
``torch/_dynamo/variables/builder.py``).
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.compile: an error when a row-wise embedding runs outside the graph that reduces it"
COMPONENT = "compile"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If False (default), torch.compile attempts to discover compilable regions in the function "
    "that it will optimize.",
    "torch.compile, fullgraph",
)
SETUP = (
    "A tensor-parallel model is wrapped by ``fully_shard`` and compiled as a whole: the hooks "
    "break the graph between the embedding and what follows."
)
WORKAROUND = "Compile block by block, which leaves the embedding out."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/torchtitan/issues/534",
        "open",
        "RowwiseParallel embedding _MaskPartial torch.compile graph break",
        "2026-11-22",
    ),
    Public("https://github.com/pytorch/pytorch/pull/185356", "near, closed"),
)
EDITS = (
    Edit(
        "torch._dynamo.variables.builder:VariableBuilder.wrap_tensor",
        """
        source = self.get_source()
        """,
        """
        source = self.get_source()
        for placement in getattr(value, "placements", ()):
            if hasattr(placement, "mask_buffer"):
                unimplemented(
                    gb_type="DTensor with the mask of a lookup outside the graph",
                    context=str(value.placements),
                    explanation="The mask is no inner tensor of the DTensor, nor equal to a copy.",
                    hints=["Reduce the output of the embedding where it is looked up."],
                )
        """,
    ),
)

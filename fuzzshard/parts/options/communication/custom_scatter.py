"""``set_custom_reduce_scatter``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word

_HELPER = (
    "class PlainReduceScatter:  # as fully_shard does it by itself",
    "    def allocate(self, size, *, dtype, device):",
    "        return torch.empty(*size, dtype=dtype, device=device)",
    "",
    "    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):",
    "        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)",
    "",
)


class CustomScatter(Word):
    """It does what is done without it."""

    name, anywhere = "custom_scatter", 6
    call = "set_custom_reduce_scatter(PlainReduceScatter())"
    helper = _HELPER
    meaning = "a group with a reduce-scatter of the user's"
    refuses = {"uses_group_memory": '"this cannot be used together" with allocate'}

"""``set_custom_all_gather``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word

_HELPER = (
    "class PlainAllGather:  # as fully_shard does it by itself",
    "    def allocate(self, size, *, dtype, device):",
    "        return torch.empty(*size, dtype=dtype, device=device)",
    "",
    "    def __call__(self, output_tensor, input_tensor, group, async_op=False):",
    "        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)",
    "",
)


class CustomGather(Word):
    """It does what is done without it."""

    name, anywhere = "custom_gather", 5
    call = "set_custom_all_gather(PlainAllGather())"
    helper = _HELPER
    meaning = "a group with an all-gather of the user's"
    refuses = {"uses_group_memory": '"this cannot be used together" with allocate'}

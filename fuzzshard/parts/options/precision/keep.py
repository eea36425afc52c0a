"""``param_dtype_override_fn``."""

from __future__ import annotations

from fuzzshard.parts.options.precision import PrecisionOption


class Keep(PrecisionOption):
    """Parameters of one dimension keep their dtype; drawn where the model computes with that."""

    name, place, new_field = "keep", 4, "param_dtype_override_fn"
    kept = "vectors"
    texts = {"vectors": f"{new_field}=lambda p: p.dtype if p.dim() == 1 else None"}
    traits = {"vectors": ("keeps_vectors",)}
    meanings = {
        "precision:kept": "mixed precision that leaves parameters of one dimension as they are"
    }

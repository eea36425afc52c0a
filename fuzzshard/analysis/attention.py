"""Attention by ``scaled_dot_product_attention``: where it is, and whether CUDA has its kernels."""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.analysis.check_dtypes import called_dtypes
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.parts.engines import specs

_HALF = frozenset(("bfloat16", "float16"))
WIDTHS, POSITIONS = 8, 32
"""What kernels of CUDA want the features of a head and the positions on a rank to be multiples
of.
"""


def positions_divide(case: Case) -> bool:
    """Return whether ranks of the shard axis can have as many positions each."""
    return case.inputs.seq % (_parts(case) * case.mesh.shard) == 0


def lacks_kernels(case: Case) -> bool:
    """Return whether CUDA has no kernel with a ring for an engine of ``case``, or none in the next
    higher precision: there is none for float64.

    That for float32 pads what it sums up over (torch/_meta_registrations.py,
    meta__scaled_dot_product_efficient_attention), and a ring needs one for each position.
    """
    if not any(spec.spreads == "attention" for spec in specs(case.engines)):
        return False
    found = inferred(case)
    paths = found.inner("attention")
    leaves = [found.leaves[path] for path in paths]
    widths = {getattr(leaf, size) for leaf in leaves for size in leaf.sizes}
    calls = [call for call in called_dtypes(case, found) if call.module in paths]
    dtypes = {dtype for call in calls for dtype in call.inputs}
    if not dtypes or not dtypes <= _HALF or any(width % WIDTHS for width in widths):
        return True
    return any(
        case.inputs.seq // (_parts(case) * on.mesh.shard) % POSITIONS  # those of a call
        for on in case.on_meshes
        if positions_divide(on)
    )


def without_kernels(case: Case) -> Case:
    """Return ``case`` without the engines that CUDA may lack kernels for, if it has others."""
    others = tuple(spec.name for spec in specs(case.engines) if spec.spreads != "attention")
    return replace(case, engines=others) if others and lacks_kernels(case) else case


def _parts(case: Case) -> int:
    return 2 if case.context_parallel.load_balance else 1

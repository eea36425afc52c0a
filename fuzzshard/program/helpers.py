"""The functions that statements call and torch does not have: scripts define those that they use,
and so do ranks.
"""

from __future__ import annotations

_PARAMETER_GROUPS = """
def parameter_groups(parameters):  # foreach refuses lists that mix meshes, dtypes or devices
    kinds = {}
    for p in parameters:
        mesh = p.device_mesh if isinstance(p, DTensor) else None
        kinds.setdefault((mesh, p.dtype, p.device), []).append(p)
    return [{"params": kind} for kind in kinds.values()]
"""

_CLIP_GRAD_NORM = """
def clip_grad_norm(parameters, max_norm, norm_type):  # the norm of the norms of all kinds
    kinds, norms = {}, []
    for p in parameters:
        if p.grad is not None:
            kinds.setdefault((getattr(p, "device_mesh", None), p.device), []).append(p)
    for kind in kinds.values():
        norm = torch.nn.utils.get_total_norm([p.grad.to(device) for p in kind], norm_type)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else 0.0
    for kind in kinds.values():
        torch.nn.utils.clip_grads_with_norm_(kind, max_norm, total)
"""

SOURCES = {"parameter_groups": _PARAMETER_GROUPS, "clip_grad_norm": _CLIP_GRAD_NORM}
"""By name."""

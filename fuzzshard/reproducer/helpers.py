"""The helper functions of scripts, each printed only where it is used."""

from __future__ import annotations

from fuzzshard.case.case import Case

_SEED = 'int.from_bytes("/".join(map(str, name)).encode(), "big") % (2**31 - 1)'

_GAUSSIAN = """
def values(shape, *name):  # the name alone decides the values
    seed = {seed}
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64){cast}
"""

_DYADIC = """
def values(shape, *name):  # -2 to 2 in steps of a half; the name alone decides the values
    seed = {seed}
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (torch.randint(1, 5, shape, generator=generator) * sign).{cast}() / 2
"""

IDS = """
def ids(size, shape, *name):
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed_of(*name)))
"""

AVERAGING = """
for grad in [p.grad for p in by_hand if p.grad is not None]:
    dist.all_reduce(grad)
    grad /= dist.get_world_size()
"""

PARAMETER_GROUPS = """
def parameter_groups(model):  # foreach optimizers refuse lists that mix DTensors and Tensors
    kinds = [[], []]
    for p in model.parameters():
        kinds[isinstance(p, DTensor)].append(p)
    return [{"params": kind} for kind in kinds if kind]
"""

_BACKWARD = """
def backward(loss, by_hand, local, unsynced=(){through}):
    # Averages what has come in since the last synchronisation and adds it to what .grad held.
    held = {{name: p.grad for name, p in by_hand.items()}}
    for p in by_hand.values():
        p.grad = None
    loss.backward()
{reached}    for name, p in by_hand.items():
        if p.grad is not None:
            local[name] = local[name] + p.grad if name in local else p.grad
        p.grad = held[name]
        if name in local and name not in unsynced{passed}:
            average = local.pop(name)
            dist.all_reduce(average)
            average /= dist.get_world_size()
            p.grad = average if p.grad is None else p.grad + average
"""

SNAPSHOT = """
def snapshot(t):
    t = t.full_tensor() if isinstance(t, DTensor) else t
    return None if t is None else t.detach().clone()
"""

PLAIN_SNAPSHOT = """
def snapshot(t):
    return None if t is None else t.detach().clone()
"""

DESCRIBE = """
def describe(p):
    text = f"{'DTensor' if isinstance(p, DTensor) else 'Tensor'}{list(p.shape)} {str(p.dtype)[6:]}"
    if isinstance(p, DTensor):
        text += f" {', '.join(map(str, p.placements))} on mesh {list(p.device_mesh.shape)}"
    return text + ("" if p.requires_grad else ", frozen")
"""

RECORD = """
calls = []


def recorded(name, collective):
    def call(*args, **kwargs):
        sizes = [a.numel() for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        calls.append(f"{name}{sizes}")
        return collective(*args, **kwargs)

    return call


for name in (
    "all_reduce broadcast all_gather all_gather_into_tensor all_gather_single reduce_scatter "
    "reduce_scatter_tensor reduce_scatter_single all_to_all_single"
).split():
    if hasattr(dist, name):
        setattr(dist, name, recorded(name, getattr(dist, name)))
"""

END = [
    "dist.destroy_process_group()",
    "os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit",
]
"""A gloo thread drops the tensors of a finished collective at any time, for which it takes the GIL; in an
interpreter that is shutting down this ends in ``std::terminate`` (seen with torch 2.13, 1 exit in 50)."""


def backward_source(*, roots: bool) -> str:
    """The function ``backward``: what :class:`fuzzshard.engines.sync.ExplicitSync` does.

    With ``roots`` it averages only what belongs to an FSDP root that the backward went through.
    """
    if not roots:
        return _BACKWARD.format(through="", reached="", passed="")
    return _BACKWARD.format(
        through=", through=frozenset()",
        reached="    reached = through | {roots[n] for n, p in by_hand.items() if p.grad is not None}\n",
        passed=" and roots[name] in reached",
    )


def seed_source() -> str:
    """The function ``seed_of``: :func:`fuzzshard.model.names.seed_of`."""
    return f"def seed_of(*name):\n    return {_SEED}"


def values_source(case: Case, *, seed_of: bool) -> str:
    """The function ``values``: :func:`fuzzshard.model.values.named_values` for the kind this case has.

    ``seed_of`` says that the function of this name is there already.
    """
    seed = "seed_of(*name)" if seed_of else _SEED
    if case.values == "dyadic":
        return _DYADIC.format(seed=seed, cast="float" if case.dtype == "float32" else "double")
    return _GAUSSIAN.format(seed=seed, cast=".float()" if case.dtype == "float32" else "")


def build_source(case: Case, lines: list[str]) -> str:
    """The function ``build``: the plain model with its named values; ``lines`` are said at its end."""
    made = f"values(p.shape, {case.seed}, name)"
    if case.values == "gaussian":
        made += " / (p[0].numel() ** 0.5 if p.ndim > 1 else 1)"
    return "\n".join(
        [
            "def build():",
            f"    model = Model(){'' if case.dtype == 'float32' else '.double()'}",
            "    for name, p in model.named_parameters():",
            f"        p.data.copy_({made})",
            *(f"    {line}" for line in lines),
            "    return model.to(device)",
        ]
    )

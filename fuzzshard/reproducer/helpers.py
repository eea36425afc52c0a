"""The helper functions of scripts, each printed only where it is used."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.model.statements import assignment, indented
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import materialize_lines

_SEED = 'int.from_bytes("/".join(map(str, name)).encode(), "big") % (2**31 - 1)'

_GAUSSIAN = """
def values(shape, *name{dtype}):  # the name alone decides the values
    seed = {seed}
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64){cast}
"""

_DYADIC = """
def values(shape, *name{dtype}):  # -2 to 2 in steps of a half; the name alone decides the values
    seed = {seed}
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (torch.randint(1, 5, shape, generator=generator) * sign){cast} / 2
"""

IDS = """
def ids(size, shape, *name):
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed_of(*name)))
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

WHOLE = """
def whole(model, *, gradients=False):
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, with_grads=gradients):
            return whole(model.module, gradients=gradients)
    tensors = {n: p.grad if gradients else p for n, p in model.named_parameters()}
    return {n: None if t is None else t.detach().clone() for n, t in tensors.items()}
"""

DESCRIBE = """
def describe(p):
    text = f"{'DTensor' if isinstance(p, DTensor) else 'Tensor'}{list(p.shape)} {str(p.dtype)[6:]}"
    if isinstance(p, DTensor):
        text += f" {', '.join(map(str, p.placements))} on mesh {list(p.device_mesh.shape)}"
    return text + ("" if p.requires_grad else ", frozen")
"""

WAIT = """
def wait(milliseconds):  # the host on the CPU, the current stream on CUDA
    if device == "cuda":
        torch.cuda._sleep(int(milliseconds * 1_500_000))
    else:
        time.sleep(milliseconds / 1000)
"""

INTERRUPT = """
def interrupt(*args):  # as a user's code may raise in the middle of an iteration
    raise InterruptedError
"""

INTERRUPT_BACKWARD = """
def interrupt_backward(module, args, output):
    if output.requires_grad:
        output.register_hook(interrupt)
"""

END = [
    "dist.destroy_process_group()",
    "os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit",
]
"""A gloo thread drops the tensors of a finished collective at any time, for which it takes the
GIL; in an interpreter that is shutting down this ends in ``std::terminate`` (seen with torch 2.13,
1 exit in 50)."""


def averaging_lines(
    case: Case, divisor: float | None = None, parameters: str = "by_hand"
) -> list[str]:
    """Averages the gradients of ``parameters``, or divides their sums by ``divisor``."""
    names = MeshNames(case)
    alone = case.mesh.data_size == 1 and divisor is not None
    return [
        f"for grad in [p.grad for p in {parameters} if p.grad is not None]:",
        *([] if alone else [f"    dist.all_reduce(grad{names.group_argument})"]),
        f"    grad /= {names.data_size if divisor is None else divisor}",
    ]


def backward_source(case: Case, *, roots: bool, divisors: bool, dtensors: bool) -> str:
    """The function ``backward``: what :class:`fuzzshard.engines.sync.ExplicitSync` does.

    With ``roots`` it averages only what belongs to an FSDP root that the backward went through,
    with ``divisors`` some gradients are sums divided by another number, with ``dtensors`` some are
    DTensors of tensor parallelism.
    """
    names = MeshNames(case)
    arguments = ["loss", "by_hand", "local", "unsynced=()"]
    retains = any(op.retains for op in case.schedule)
    arguments += ["retain_graph=False"] * retains
    arguments += ["through=frozenset()"] * roots + ["divide_by={}"] * divisors
    usual = names.data_size
    reached = "through | {roots[n] for n, p in by_hand.items() if p.grad is not None}"
    summed = (
        "average.to_local() if isinstance(average, DTensor) else average"
        if dtensors
        else "average"
    )
    placed = ["        if isinstance(p.grad, DTensor):"]
    placed += ["            p.grad = p.grad.redistribute(placements=p.placements)"]
    return "\n".join(
        [
            f"def backward({', '.join(arguments)}):",
            "    # Averages what has come in since the last synchronisation and adds it to what "
            ".grad held.",
            "    held = {name: p.grad for name, p in by_hand.items()}",
            "    for p in by_hand.values():",
            "        p.grad = None",
            f"    loss.backward({'retain_graph=retain_graph' * retains})",
            *[f"    reached = {reached}"] * roots,
            "    for name, p in by_hand.items():",
            *(placed if dtensors else []),
            "        if p.grad is not None:",
            "            local[name] = local[name] + p.grad if name in local else p.grad",
            "        p.grad = held[name]",
            "        if name in local and name not in "
            f"unsynced{' and roots[name] in reached' * roots}:",
            "            average = local.pop(name)",
            f"            dist.all_reduce({summed}{names.group_argument})",
            f"            average /= {f'divide_by.get(name, {usual})' if divisors else usual}",
            "            p.grad = average if p.grad is None else p.grad + average",
        ]
    )


def seed_source() -> str:
    """The function ``seed_of``: :func:`fuzzshard.model.statements.seed_of`."""
    return f"def seed_of(*name):\n    return {_SEED}"


def values_source(case: Case, *, seed_of: bool, casts: bool) -> str:
    """The function ``values``: :func:`fuzzshard.model.values.named_values` for the kind this case
    has.

    ``seed_of`` says that the function of this name is there already, ``casts`` that the dtype
    changes.
    """
    seed = "seed_of(*name)" if seed_of else _SEED
    dtype = f", dtype=torch.{case.dtype}" if casts else ""
    if case.values == "dyadic":
        cast = ".float()" if case.dtype == "float32" else ".double()"
        return _DYADIC.format(seed=seed, dtype=dtype, cast=".to(dtype)" if casts else cast)
    cast = ".float()" if case.dtype == "float32" else ""
    return _GAUSSIAN.format(seed=seed, dtype=dtype, cast=".to(dtype)" if casts else cast)


def build_source(case: Case, lines: list[str], *, seeds: bool) -> str:
    """The function ``build``: the plain model with its named values; ``lines`` are said at its
    end.

    ``seeds`` makes the seed of the values an argument, ``init="meta"`` the device.
    """
    made = f"values(p.shape, {'seed' if seeds else case.seed}, name)"
    if case.values == "gaussian":
        made += " / (p[0].numel() ** 0.5 if p.ndim > 1 else 1)"
    cast = "" if case.dtype == "float32" else ".double()"
    make = [f"    model = Model(){cast}"]
    if case.init == "meta":
        make = ["    with torch.device(where):", f"    {make[0]}"]
    arguments = ["where"] * (case.init == "meta") + [f"seed={case.seed}"] * seeds
    return "\n".join(
        [
            f"def build({', '.join(arguments)}):",
            *make,
            *(f"    {line}" for line in _dtype_lines(case)),
            "    for name, p in model.named_parameters():",
            f"        p.data.copy_({made})",
            *(f"    {line}" for line in lines),
            f"    return model{'' if case.init == 'meta' else '.to(device)'}",
        ]
    )


def _dtype_lines(case: Case) -> list[str]:
    """Gives the parameters that have a dtype of their own that dtype."""
    lines = []
    for entry in case.dtypes:
        names = [fqn for fqn in facts(case).parameters if is_within(fqn, entry.target)]
        lines += [
            *assignment("names_below", names),
            "for p in map(model.get_parameter, names_below):",
        ]
        lines.append(f"    p.data = p.data.to(torch.{entry.dtype})")
    return lines


def materialize_source(case: Case, *, seeds: bool) -> str:
    """The function ``materialize``."""
    seed, build = (", seed", "build(device, seed=seed)") if seeds else ("", "build(device)")
    lines = [f"def materialize(model{seed}):", *indented(materialize_lines(case, build))]
    return "\n".join(lines)


GROUPS = """
def groups(model):  # what fully_shard holds, by private names
    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    return [group for state in states for group in state._fsdp_param_groups]
"""

PART = """
def part(model, module, name):  # what fully_shard holds of one parameter
    parts = [p for group in groups(model) for p in group.fsdp_params]
    where = (module, name)
    return next(p for p in parts if (p._module_info.module, p._module_info.param_name) == where)
"""

UNREDUCED = """
def unreduced(model, module, name):  # what backwards have left of a gradient for a later reduction
    held = [p for group in groups(model) for p in group.fsdp_params]
    [p] = [p for p in held if (p._module_info.module, p._module_info.param_name) == (module, name)]
    grads = {p.unsharded_accumulated_grad, p._unsharded_param.grad}  # one tensor since torch 2.15
    return sum(grad for grad in grads if grad is not None)
"""

OF_PRIVATE_STATE = {"groups": GROUPS, "part": PART, "unreduced": UNREDUCED}
"""By name, helper functions that say by private names what an engine holds within: those of
:mod:`fuzzshard.engines.fully_shard.state`.
"""

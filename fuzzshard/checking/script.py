"""A finding around a model of the user's own as a script: torch, and the user's functions."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from fuzzshard.model.statements import comment
from fuzzshard.parts.engines import spec_of
from fuzzshard.program.helpers import called
from fuzzshard.program.imports import import_block
from fuzzshard.subject.functions import STEPS
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.statements import prepare_lines, recompute_lines, wrap_lines
from fuzzshard.subject.subject import Subject, Training

_STEPS = Path(STEPS).read_text().replace("  # type: ignore[type-arg]", "")
SOURCES = {
    node.name: "".join(f"@{ast.unparse(d)}\n" for d in node.decorator_list)
    + str(ast.get_source_segment(_STEPS, node))
    for node in ast.parse(_STEPS).body
    if isinstance(node, ast.FunctionDef | ast.ClassDef)
}
"""The functions and classes that ranks have, too, by name."""

_BATCH = """
def batch_of(step, number, rank):
    batch = inputs(step * MICROBATCHES + number, rank, data_size)
    batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
    return {}


def loss_of(model, batch):
    return loss(outputs_of(model, batch), batch)
"""

_STEP = """
def train_step(model, optimizer, step, ranks):
    def taken(number):
        torch.manual_seed(SEED + step * 10007 + number)

    numbered = {{
        rank * MICROBATCHES + number: batch_of(step, number, rank)
        for rank in ranks
        for number in range(MICROBATCHES)
    }}
    {}(model, optimizer, Batches(numbered, taken){})
"""

_TRAIN = '''
def train(model, plain):
    """Train, and return all gradients and parameters on the way, whole, by plain names."""
    seen, parameters = {}, dict(model.named_parameters())
    optimizer = make_optimizer(model.parameters())

    def keep_gradients(*_):
        for name, parameter in parameters.items():
            place = f"step {step}, gradient of {plain_name(name)}"
            if place not in seen:
                seen[place] = whole(parameter.grad)

    if plain and not OWN_STEP:
        averaged = [p for p in model.parameters() if p.requires_grad]
        optimizer.register_step_pre_hook(lambda *_: average(averaged))
    optimizer.register_step_pre_hook(keep_gradients)
    for step in range(STEPS):
        ranks = range(data_size) if plain and OWN_STEP else [data_rank]
        train_step(model, optimizer, step, ranks)
        for name, parameter in parameters.items():
            seen[f"step {step}, {plain_name(name)}"] = whole(parameter)
    return seen


def plain_name(name):
    return name.removeprefix("module.").removeprefix("_orig_mod.")


def whole(tensor):
    if tensor is None:
        return None
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()
'''

_COMPARE = """
observed = train(parallelized(build()), plain=False)
expected = train(build(), plain=True)
for name, due in expected.items():
    seen = observed[name]
    if due is None or seen is None:
        both = due is seen or not (due if seen is None else seen).any()
        assert both, f"rank {rank}, {name}: {seen} in place of {due}"
        continue
    apart, largest = (due - seen).abs().max().item(), due.abs().max().item()
    wrong = f"rank {rank}, {name}: expected\\n{due}\\nobserved\\n{seen}"
    assert apart <= TOLERANCE * largest, wrong
print("the parallelised model trains as the plain one does")
dist.destroy_process_group()
"""

TOLERANCE = {"": 1e-3, "bfloat16": 0.1}
"""Which part of the largest value rounding may come to, by what is computed in. What is shrunk is
mostly wrong by more; a script says less than a check does.
"""


def no_script(subject: Subject, training: Training) -> str:
    """Return why there is no script for a training; empty: there is one."""
    if subject.names:
        return "a script cannot rename parameters as --map does"
    if subject.loss_weight and not subject.train_step and not training.variation.only:
        return "a script does not know --loss-weight; give a --train-step that weighs the losses"
    if training.engine and spec_of(training.engine).has_units:
        return f"a script cannot compare the flat parameters of {training.engine}"
    return ""


def script(subject: Subject, report: TrainingReport, preload: tuple[str, ...]) -> str:
    """Return a script that trains the plain and the parallelised model and compares; empty where
    :func:`no_script` says why.
    """
    training = report.training
    if no_script(subject, training):
        return ""
    if training.variation.only:
        subject = subject.of_one_module
    body = "\n".join(_lines(subject, report, preload))
    helpers = "\n\n\n".join(SOURCES[name] for name in called(body, SOURCES))
    body = f"{helpers}\n\n\n{body}"
    found = report.difference
    what = f"{found.kind} {found.name} {found.looks_like}" if found else report.message
    head = f"# {report.outcome}: {comment(what)}\n"
    head += f"# torchrun --standalone --nproc-per-node {training.mesh.size} repro.py\n"
    annotations = "from __future__ import annotations\n"
    return f"{head}\n{annotations}\n{import_block(body)}\n\n\n{body}"


def _lines(subject: Subject, report: TrainingReport, preload: tuple[str, ...]) -> Iterator[str]:
    training: Training = report.training
    variation, mesh = training.variation, training.mesh
    yield f"STEPS, MICROBATCHES, SEED = {training.steps}, {training.microbatches}, {training.seed}"
    yield f"OWN_STEP = {bool(subject.train_step)}  # the plain model gets the batches of all ranks"
    yield f"TOLERANCE = {TOLERANCE[variation.param_dtype]}"
    yield ""
    yield f"sys.path.insert(0, {os.getcwd()!r})"
    yield from (f"load({f'{path}:apply'!r})()" for path in preload)
    yield f"inputs = load({_absolute(subject.inputs)!r})"
    yield _or_default("loss", subject.loss, "mean_of_squares")
    adam = "lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
    yield _or_default("make_optimizer", subject.optimizer, adam)
    if subject.train_step:
        yield f"own_step = load({_absolute(subject.train_step)!r})"
    if variation.only:
        yield f"ONLY = {variation.only!r}"
    yield ""
    yield "device = 'cuda' if torch.cuda.is_available() else 'cpu'"
    yield "dist.init_process_group('nccl' if device == 'cuda' else 'gloo')"
    yield "rank = dist.get_rank()"
    yield "if device == 'cuda':"
    yield "    torch.cuda.set_device(rank % torch.cuda.device_count())"
    sizes, names = tuple(mesh.axes.values()), tuple(mesh.axes)
    yield f"whole_mesh = init_device_mesh(device, {sizes}, mesh_dim_names={names})"
    yield f"mesh = whole_mesh[{mesh.data_axes!r}]"
    yield "data_rank, data_size = 0, mesh.size()"
    yield f"for axis in {mesh.data_axes!r}:"
    yield "    data_rank = data_rank * mesh[axis].size() + mesh.get_local_rank(axis)"
    yield ""
    yield ""
    yield "def build_whole():"
    yield f"    torch.manual_seed({training.seed})"
    if variation.size:
        yield f"    model = load({_absolute(subject.smaller)!r})({variation.size})"
    else:
        yield f"    model = load({_absolute(subject.build)!r})()"
    yield from (f"    {line}" for line in prepare_lines(variation))
    yield "    return model.to(device)"
    yield ""
    yield ""
    yield "def build():"
    yield "    return build_whole()" + (".get_submodule(ONLY)" if variation.only else "")
    yield ""
    yield ""
    yield "def parallelized(model):"
    yield from (f"    {line}" for line in recompute_lines(variation.kept(variation.checkpointed)))
    if subject.parallelize:
        yield f"    wrapped = load({_absolute(subject.parallelize)!r})(model, whole_mesh)"
        yield "    return model if wrapped is None else wrapped"
    else:
        lines = wrap_lines(training.engine, report.blocks, variation)
        yield from (f"    {line}" for line in lines)
        yield "    return wrapped"
    yield ""
    yield _BATCH.format(
        "recorded_inputs(build_whole(), ONLY, batch)" if variation.only else "batch"
    )
    shares = f"[1 / {training.microbatches}] * {training.microbatches}"
    usual = f", loss_of, {shares}, evaluates={variation.evaluates}, unsyncs={variation.unsynced}"
    yield _STEP.format(*("own_step", "") if subject.train_step else ("usual_step", usual))
    yield _TRAIN
    yield _COMPARE


def _or_default(variable: str, name: str, default: str) -> str:
    return f"{variable} = {f'load({_absolute(name)!r})' if name else default}"


def _absolute(name: str) -> str:
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if place.endswith(".py") else name

"""A finding around a model of the user's own as a script: torch, and the user's functions."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from string import Template

from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.statements import indented
from fuzzshard.printable import comment
from fuzzshard.program import helpers
from fuzzshard.program.imports import import_block
from fuzzshard.subject.functions import STEPS
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.statements import prepare_lines, recompute_lines, wrap_lines
from fuzzshard.subject.subject import Subject, Training

_SHARED = Path(STEPS).read_text().replace("  # type: ignore[type-arg]", "")
SOURCES = {
    node.name: "".join(f"@{ast.unparse(d)}\n" for d in node.decorator_list)
    + str(ast.get_source_segment(_SHARED, node))
    for node in ast.parse(_SHARED).body
    if isinstance(node, ast.FunctionDef | ast.ClassDef)
} | {"snapshot": helpers.SOURCES["snapshot"]}
"""The functions and classes of scripts by name; ranks have them, too."""

_SCRIPT = Template('''
STEPS, MICROBATCHES, SEED = $steps, $microbatches, $seed
OWN_STEP = $own_step  # the plain model gets the batches of all ranks
TOLERANCE = $tolerance

sys.path.insert(0, $here)
$functions

device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
rank = dist.get_rank()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
whole_mesh = init_device_mesh(device, $sizes, mesh_dim_names=$axes)
mesh = whole_mesh[$data_axes]
data_rank, data_size = 0, mesh.size()
for axis in mesh.mesh_dim_names:
    data_rank = data_rank * mesh[axis].size() + mesh.get_local_rank(axis)


def build_whole():
    torch.manual_seed(SEED)
    model = $build
$prepare
    return model.to(device)


def build():
    return build_whole()$part


def parallelized(model):
$parallelize
    return model if wrapped is None else wrapped


def batch_of(step, number, rank):
    batch = your_inputs(step * MICROBATCHES + number, rank, data_size)
    batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
    return $batch


def loss_of(model, batch):
    return your_loss(outputs_of(model, batch), batch)


def train(model, plain):
    """Train, and return all gradients and parameters on the way, whole, by plain names."""
    seen, prefix = {}, re.compile(r"(module\\.)?(_orig_mod\\.)?")
    parameters = {prefix.sub("", name, count=1): p for name, p in model.named_parameters()}
    optimizer = your_optimizer(model.parameters())

    def keep_gradients(*_):
        for name, parameter in parameters.items():
            seen.setdefault(f"step {step}, gradient of {name}", snapshot(parameter.grad))

    if plain and not OWN_STEP:
        optimizer.register_step_pre_hook(lambda *_: average([*model.parameters()]))
    optimizer.register_step_pre_hook(keep_gradients)
    for step in range(STEPS):
        numbered = {
            rank * MICROBATCHES + number: batch_of(step, number, rank)
            for rank in (range(data_size) if plain and OWN_STEP else [data_rank])
            for number in range(MICROBATCHES)
        }
        seed = SEED + step * 10007
        batches = Batches(numbered, lambda number: torch.manual_seed(seed + number))
        $step
        for name, parameter in parameters.items():
            seen[f"step {step}, {name}"] = snapshot(parameter)
    return seen


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
''')

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
    training, found = report.training, report.difference
    if no_script(subject, training):
        return ""
    body = _body(subject, report, preload)
    functions = (SOURCES[name].strip() for name in helpers.called(body, SOURCES))
    body = "\n\n\n".join(functions) + f"\n\n{body}"
    what = f"{found.kind} {found.name} {found.looks_like}" if found else report.message
    head = f"# {report.outcome}: {comment(what)}\n"
    head += f"# torchrun --standalone --nproc-per-node {training.mesh.size} repro.py\n"
    annotations = "from __future__ import annotations\n"
    return f"{head}\n{annotations}\n{import_block(body)}\n\n\n{body}"


def _body(subject: Subject, report: TrainingReport, preload: tuple[str, ...]) -> str:
    training: Training = report.training
    changes, mesh = training.variation, training.mesh
    if changes.only:
        subject = subject.of_one_module
    loaded = {"loss": "mean_of_squares", "optimizer": "usual_optimizer"}
    loaded |= {field: f"load({_absolute(name)!r})" for field, name in subject.functions.items()}
    lines = [f"load({f'{path}:apply'!r})()" for path in preload]
    wrap = ["wrapped = your_parallelize(model, whole_mesh)"]
    if not subject.parallelize:
        wrap = wrap_lines(training.engine, report.blocks, changes)
    step = "your_train_step(model, optimizer, batches)"
    if not subject.train_step:
        shares = f"[1 / {training.microbatches}] * {training.microbatches}"
        told = f"evaluates={changes.evaluates}, unsyncs={changes.unsynced}"
        step = f"usual_step(model, optimizer, batches, loss_of, {shares}, {told})"
    return _SCRIPT.substitute(
        steps=training.steps,
        microbatches=training.microbatches,
        seed=training.seed,
        own_step=bool(subject.train_step),
        tolerance=TOLERANCE[changes.param_dtype],
        here=repr(os.getcwd()),
        functions="\n".join([*lines, *(f"your_{name} = {f}" for name, f in loaded.items())]),
        sizes=tuple(mesh.axes.values()),
        axes=tuple(mesh.axes),
        data_axes=mesh.data_axes,
        build=f"your_smaller({changes.size})" if changes.size else "your_build()",
        prepare="\n".join(indented(prepare_lines(changes))),
        part=f".get_submodule({changes.only!r})" * bool(changes.only),
        parallelize="\n".join(
            indented([*recompute_lines(changes.kept(changes.checkpointed)), *wrap])
        ),
        batch=f"recorded_inputs(build_whole(), {changes.only!r}, batch)"
        if changes.only
        else "batch",
        step=step,
    )


def _absolute(name: str) -> str:
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if place.endswith(".py") else name

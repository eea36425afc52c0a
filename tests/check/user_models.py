"""Subjects by the functions that their files define."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from fuzzshard.subject.report import Report
from fuzzshard.subject.subject import Subject

HERE = Path(__file__).parent
Checked = Callable[..., Report]
"""What the fixture ``checked`` is."""

FIELDS = ("loss", "parallelize", "optimizer", "train_step", "loss_weight")

SPECIFIC = ("build", "batch", "loss")
"""Of these a file may have some for each of its models."""


def functions_of(path: Path) -> dict[str, str]:
    """The names of the functions in a file, as a subject names them, each under its own name."""
    defined = ast.parse(path.read_text()).body
    return {f.name: f"{path}:{f.name}" for f in defined if isinstance(f, ast.FunctionDef)}


def path_of(name: str) -> Path:
    """The file of a model."""
    return HERE / "subjects" / f"{name}.py"


def model(name: str, **others: str) -> Subject:
    """The subject that ``subjects/NAME.py`` defines; ``others`` are names of other functions in
    that file, or empty.
    """
    return _subject(functions_of(path_of(name)), others)


def models_in(path: Path) -> dict[str, Subject]:
    """The subjects of a file, by the names of their builds; ``batch_vit`` and ``loss_vit`` are for
    ``build_vit``.
    """
    functions = functions_of(path)
    found = {}
    for build in (name for name in functions if name.startswith("build")):
        kind = build.removeprefix("build")
        own = {f: functions[f + kind] for f in SPECIFIC if f + kind in functions}
        found[build] = _subject(functions | own, {})
    return found


FLOATS = {"inputs": "floats", "loss": ""}
BY_DDP = {"parallelize": "by_ddp"}
OF_MISTAKES: dict[str, dict[str, str]] = {
    "averages_of_shards": {
        "build": "Averaged",
        "parallelize": "averages_of_shards_made",
        **FLOATS,
    },
    "behind_a_key_bias": {"build": "Attending"},
    "buffer_lost_by_meta": {"build": "Scaled", **FLOATS},
    "buffer_of_the_rank": {"build": "Projected", **FLOATS},
    "clipped_by_local_norms": {"optimizer": "descent"},
    "divided_by_a_constant": {"parallelize": "root_only"},
    "evaluation_mode": {"build": "dropping_out", **FLOATS},
    "gradients_broadcast": {"parallelize": "of_its_own"},
    "mean_of_each_batch": {"parallelize": "root_only", "inputs": "batch_of_the_rank"},
    "mean_of_means": {"inputs": "batch_of_the_rank", "loss_weight": "weigh"},
    "method_bypassed": {"build": "Encoding", **FLOATS},
    "microbatch_left_out_by_ddp": BY_DDP,
    "mixed_dtypes": {"build": "adapters", **FLOATS},
    "no_module_called": {"build": "without_blocks", **BY_DDP, **FLOATS},
    "no_sync_left_on": BY_DDP,
    "optimizer_of_its_own": {"parallelize": "with_an_optimizer"},
    "optimizer_too_early": {"optimizer": "early_optimizer"},
    "part_in_evaluation": {"build": "build_with_frozen_part", **FLOATS},
    "thawed_after_wrapping": {"build": "build_frozen", **BY_DDP},
    "thawed_by_wrapping": {"build": "build_frozen"},
    "ranks_seeded_alike": {"build": "dropping_out", **FLOATS},
    "reduced_twice": BY_DDP,
    "uneven_shards_mixed": {
        **{"build": "Uneven", "inputs": "sevens"},
        **{"train_step": "shards_mixed", "parallelize": "correct"},
    },
    "updates_scaled_by_shard": {"optimizer": "lars", "parallelize": "correct"},
    "wrapper_bypassed": BY_DDP,
}
"""What subjects of mistakes have beside the mistake, in place of ``tiny.py``'s."""


def mistake(name: str, **others: str) -> Subject:
    """The subject that has a mistake: a training loop of that name, or else what makes a model
    parallel.
    """
    defined = {}
    for file in ("tiny", "models", "loops", "sharding"):
        path = HERE / "mistakes" / f"{file}.py"
        nodes = ast.parse(path.read_text()).body
        defined |= {n.name: f"{path}:{n.name}" for n in nodes if hasattr(n, "name")}
    of_loop = defined.get(name, "").split(":")[0].endswith("loops.py")
    own = {"train_step": name, "parallelize": "correct"} if of_loop else {"parallelize": name}
    usual = {"build": "build", "inputs": "batch", "loss": "loss", "parallelize": "correct"}
    chosen = usual | own | OF_MISTAKES.get(name, {}) | others
    return Subject(**{field: defined.get(function, "") for field, function in chosen.items()})


def _subject(functions: dict[str, str], others: dict[str, str]) -> Subject:
    named = {"build": functions["build"], "inputs": functions["batch"]}
    named |= {field: functions[field] for field in FIELDS if field in functions}
    named |= {field: functions.get(name, "") for field, name in others.items()}
    return Subject(**named)


def words_of(subject: Subject) -> list[str]:
    """A subject as the command line has it."""
    options = dict(subject.functions)
    words = [options.pop("build")]
    for field, name in options.items():
        words += [f"--{field.replace('_', '-')}", name]
    return words

"""Models of ``transformers``, ``timm``, PEFT and ``diffusers``, where installed, raise no alarm.

``pytest -m slow tests/check/test_library_models.py`` in an environment that has them.
"""

from __future__ import annotations

import pytest
from user_models import Checked, models_in, path_of

from fuzzshard.subject.report import Report
from fuzzshard.subject.subject import Subject

MESHES = ("dp_shard=2", "dp_shard=4", "dp_replicate=2,dp_shard=2")
MODELS = [
    pytest.param(library, subject, id=f"{library}-{build}")
    for library in ("transformers", "peft", "timm", "diffusers")
    for build, subject in models_in(path_of(f"{library}_models")).items()
]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("library", "subject"), MODELS)
def test_a_model_of_a_library_trains_alike(
    library: str, subject: Subject, mesh: str, checked: Checked
):
    pytest.importorskip(library)
    report = checked(subject, mesh, steps=3)
    refused = [one for one in report.trainings if "refuses the model" in one.message]
    judged = [one for one in report.trainings if one not in refused]
    Report(trainings=tuple(judged)).require("rounding")

"""Models of ``transformers``, PEFT and ``timm``, where these are installed: nothing is reported.

``pytest -m slow tests/check/test_library_models.py`` in an environment that has them.
"""

from __future__ import annotations

import pytest
from user_models import Checked, functions_of, model, path_of

MESHES = ("dp_shard=2", "dp_shard=4", "dp_replicate=2,dp_shard=2")
LIBRARIES = ("transformers", "peft", "timm")
BUILDS = [
    (library, name)
    for library in LIBRARIES
    for name in functions_of(path_of(f"{library}_models"))
    if name.startswith("build")
]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("library", "build"), BUILDS)
def test_a_model_of_a_library_trains_alike(library: str, build: str, mesh: str, checked: Checked):
    pytest.importorskip(library)
    others = {"build": build}
    if (library, build) == ("transformers", "build_vit"):
        others |= {"inputs": "batch_of_images", "loss": "loss_of_images"}
    checked(model(f"{library}_models", **others), mesh, steps=3).require("rounding")

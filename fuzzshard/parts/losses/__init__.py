"""The losses: every file of this folder is one, and all are found here."""

from __future__ import annotations

import importlib
import pkgutil

from fuzzshard.parts.loss import Loss as Loss

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_file.name)

LOSSES: dict[str, Loss] = {
    loss.name: loss() for loss in sorted(Loss.__subclasses__(), key=lambda loss: loss.place)
}
"""By name, in the order in which one is drawn."""

DEFAULT = "dot"
"""What a case has unless it says otherwise."""
SIMPLEST: str = next(iter(LOSSES))
"""The one whose gradient is 1 everywhere."""

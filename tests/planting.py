"""Faults that tests plant in torch: functions in the modules of folders named ``faults``."""

from __future__ import annotations

import functools
import inspect
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mend_files import mend_file

TESTS = Path(__file__).parent
APPLY = f"""
import runpy
import sys

sys.path.append({str(TESTS)!r})
apply = runpy.run_path({{module!r}})[{{fault!r}}]
"""
FAULT = re.compile(r"^(?:@instead_of\(.*\)\n)?def (\w+)\(\s*(?:right|patch)\b", re.MULTILINE)
Patch = Callable[[Any, str, Any], None]

_written = tempfile.TemporaryDirectory()


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a function a fault: it runs in place of ``owner.name``, which it is given first."""

    def plant(fault: Callable[..., Any]) -> Callable[..., None]:
        _, *parameters = inspect.signature(fault).parameters.values()
        given = inspect.Signature(parameters)

        def apply(patch: Patch = setattr) -> None:
            right = getattr(owner, name)
            is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)

            def wrong(*args: Any, **kwargs: Any) -> Any:
                return fault(right, *args, **kwargs)

            wrong.__signature__ = given  # type: ignore[attr-defined]  # torch counts parameters
            patch(owner, name, staticmethod(wrong) if is_static else wrong)

        return apply

    return plant


def faults() -> dict[str, Path]:
    """Return the modules of all faults that tests plant."""
    modules = sorted(TESTS.glob("*/faults/*.py"))
    return {fault: module for module in modules for fault in FAULT.findall(module.read_text())}


@functools.cache
def fault_file(fault: str) -> Path:
    """Return a file that plants a fault when it is preloaded."""
    file = Path(_written.name, f"{fault}.py")
    file.write_text(APPLY.format(module=str(faults()[fault]), fault=fault))
    return file


def planting_mend(folder: Path, fault: str) -> Path:
    """Write a mend that plants a fault for as long as a case runs."""
    return mend_file(folder, fault, APPLY.format(module=str(faults()[fault]), fault=fault))

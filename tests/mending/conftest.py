from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fuzzshard.mending import source


@pytest.fixture
def torch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the source of torch is read from."""
    folder = tmp_path / "torch"
    folder.mkdir()
    monkeypatch.setattr(source, "torch_folder", lambda: folder)
    caches = (source.find_function, source.filed_code)
    for cache in caches:
        cache.cache_clear()
    yield folder
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def torch_module(
    torch_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], ModuleType]:
    """Adds a module of its own to torch: ``torch.made_up``."""

    def add(text: str) -> ModuleType:
        file = torch_folder / "made_up.py"
        file.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location("torch.made_up", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "torch.made_up", module)
        spec.loader.exec_module(module)
        return module

    return add

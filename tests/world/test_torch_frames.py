"""Which function a crash is named by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuzzshard.world.experiment import innermost_torch_frame

SOURCE = """
def raise_in_a_comprehension():
    return [1 / number for number in (0,)]
"""


def test_a_comprehension_is_named_by_its_function_on_every_python(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(SOURCE, str(tmp_path / "torch" / "distributed.py"), "exec"), names)
    function = names["raise_in_a_comprehension"]
    with pytest.raises(ZeroDivisionError) as raised:
        function()
    assert innermost_torch_frame(raised.value) == "raise_in_a_comprehension"

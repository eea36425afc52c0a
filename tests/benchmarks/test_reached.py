"""Which lines of a file count, and which were reached."""

from __future__ import annotations

from pathlib import Path

from reached import functions

SOURCE = '''
class C:
    def f(self, x):
        """Docstring."""
        if x:
            raise ValueError(x)
        return x

    def mended(self):
        return 1


def g():
    def inner():
        return 2

    return inner
'''


def test_lines_that_raise_and_functions_with_mends_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(SOURCE)
    found = {f.name: f for f in functions(file, {5, 7, 17}, {9})}
    assert {name: sorted(f.lines) for name, f in found.items()} == {
        "C.f": [5, 7],
        "g": [17],
        "g.inner": [15],
    }
    assert [name for name, f in found.items() if f.missed] == ["g.inner"]
    assert found["g.inner"].text() == "  14 g.inner: never"

"""The page in Debian's or anybody's Chromium, headless; skipped where there is none."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recorded import RESHARD, judged, one_finding, record

from fuzzshard.report.html.page import write_page
from fuzzshard.verdict import Status

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
CORPUS = Path(__file__).parents[2] / "corpus" / "findings"
WIDTHS = (400, 800, 1600)

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium")

PROBE = """<script>
addEventListener("load", () => {
  const field = document.querySelector(".filters select[name=severity]");
  const rows = () => [...document.querySelectorAll("tr[data-finding]")].filter(
    (row) => row.getBoundingClientRect().height).length;
  const all = rows();
  let left = all;
  if (field) {
    field.value = "silent";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    left = rows();
    field.value = "*";
    field.dispatchEvent(new Event("input", {bubbles: true}));
  }
  for (const one of document.querySelectorAll("details")) one.open = true;
  parent.postMessage({
    name: window.name, width: innerWidth,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: [...document.querySelectorAll("body *")].filter((one) =>
      one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
      && !one.closest(".scroll, pre")).slice(0, 3).map((one) => one.outerHTML.slice(0, 200)),
    background: getComputedStyle(document.body).backgroundColor, all, left,
  }, "*");
});
</script></body>"""
FRAMES = """<!DOCTYPE html><pre>[]</pre><script>
const seen = [];
addEventListener("message", (event) => {
  seen.push(event.data);
  document.querySelector("pre").textContent = JSON.stringify(seen);
});
</script>"""


class Measured(NamedTuple):
    """What the pages say of themselves by name, and what the browser printed."""

    pages: dict[str, dict[str, Any]]
    console: list[str]


def measure(folder: Path, pages: dict[str, Path]) -> Measured:
    """Open every page at every width, and one in the dark, with all that is folded unfolded."""
    frames = [(f"{name} {width}", name, width, "light") for name in pages for width in WIDTHS] + [
        (f"{name} dark", name, 800, "dark") for name in pages
    ]
    outer = FRAMES
    for name, path in pages.items():
        (folder / f"{name}.html").write_text(path.read_text().replace("</body>", PROBE))
    for title, name, width, scheme in frames:
        outer += (
            f'<iframe name="{title}" src="{name}.html" '
            f'style="width: {width}px; height: 900px; border: 0; color-scheme: {scheme}"></iframe>'
        )
    (folder / "outer.html").write_text(outer)
    ran = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={folder / 'profile'}", "--window-size=1700,1000"),
            *("--virtual-time-budget=5000", "--dump-dom", (folder / "outer.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = re.search(r"<pre>(.*?)</pre>", ran.stdout, re.DOTALL)
    assert found is not None, ran.stderr
    told = json.loads(html.unescape(found[1]))
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return Measured({page["name"]: page for page in told}, console)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A corpus without a journal, and a campaign that runs and has found something."""
    folder = tmp_path_factory.mktemp("browser")
    events = one_finding(
        folder / "running", RESHARD, "divergence/fully_shard/registered_parameter", at=1.0
    )
    cases = [*judged(features=["reshard:int"], at=0.0), *judged(Status.DIVERGENCE, at=1.0)]
    record(folder / "running", [*cases, *events])
    pages = {name: folder / f"{name}-page.html" for name in ("corpus", "campaign")}
    write_page([CORPUS], pages["corpus"])
    write_page([folder / "running"], pages["campaign"])
    assert '<body data-refresh="30">' in pages["campaign"].read_text()
    return measure(folder, pages)


def test_no_page_prints_to_the_console(measured: Measured) -> None:
    assert measured.console == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["corpus", "campaign"])
def test_no_page_is_wider_than_the_window(measured: Measured, name: str, width: int) -> None:
    page = measured.pages[f"{name} {width}"]
    assert page["width"] == width
    assert (page["overflow"], page["wide"]) == (0, [])


@pytest.mark.parametrize("name", ["corpus", "campaign"])
def test_pages_are_dark_where_the_reader_wants_it(measured: Measured, name: str) -> None:
    assert measured.pages[f"{name} dark"]["background"] == "rgb(20, 23, 27)"
    assert measured.pages[f"{name} 800"]["background"] == "rgb(246, 246, 243)"


def test_a_filter_hides_the_findings_that_are_not_asked_for(measured: Measured) -> None:
    page = measured.pages["corpus 800"]
    assert page["all"] > page["left"] > 0

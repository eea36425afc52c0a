"""The commands of a fleet where there is none, or no Ray."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from command_line import ran

from fuzzshard.campaign.exchange import NodeState
from fuzzshard.commands import fleet


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    node = tmp_path / "fleet" / "host-12345678"
    node.mkdir(parents=True)
    state = NodeState(host="host", pid=1, corpus="/local", ended="time is up")
    (node / "node.json").write_bytes(msgspec.json.encode(state))
    return tmp_path


def one_line(*arguments: object) -> str:
    """What the command cannot do."""
    code, out, error = ran("fleet", *arguments)
    assert (code, out) == (2, "")
    (line,) = error.splitlines()
    return line


def test_without_ray_one_line_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'fuzzshard[fleet]'" in one_line("run", "--corpus", tmp_path / "corpus")
    assert not list(tmp_path.iterdir())


def test_nothing_of_ray_is_imported_by_other_commands(corpus):
    program = (
        "import sys; from fuzzshard import cli\n"
        f"try: cli.main(['status', {str(corpus / 'fleet')!r}])\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'ray']"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-tmie", "10m"], "Did you mean --max-time?"),
        (["--max-time", "soon"], "is not a duration"),
        (["--max-cases", "1.5"], "whole number"),
        (["--exchange", "there"], "every node of a fleet has its own --exchange"),
        (["--nodes", "0"], "--nodes is 0"),
        (["--world-nodes", "0"], "--world-nodes is 0"),
        (["--nodes", "1", "--world-nodes", "2"], "not more than --nodes"),
        (["--node", "a"], "every node of a fleet has its own --node"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_line(options, said):
    assert said in one_line("run", *options)


def test_options_of_run_are_passed_on_with_full_paths(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words, seed = fleet._words_of_run(
        (
            *("--seed", "1", "--no-shrink", "--preload", "a.py", "--preload=b.py", "--fresh"),
            *("--require", "mesh:hsdp", "compile:*", "--max-time", "90s", "--json"),
        )
    )
    assert seed == 1
    pairs = dict(zip(words, [*words[1:], ""], strict=True))
    assert pairs["--max-time"] == "90.0"
    assert {"--no-shrink", "--fresh", "--json"} < set(words)
    assert [words[i + 1] for i, word in enumerate(words) if word == "--preload"] == [
        str(tmp_path / "a.py"),
        str(tmp_path / "b.py"),
    ]
    assert words.count("--require") == 2
    assert "--seed" not in words


def test_the_status_is_that_of_an_exchange(corpus):
    code, out, _ = ran("status", corpus / "fleet")
    assert code == 0
    assert "host-12345678: ended: time is up" in out


def test_what_nodes_told_is_no_part_of_the_corpus(corpus):
    entry = corpus / "fleet" / "host-12345678" / "findings" / "x-1"
    entry.mkdir(parents=True)
    (entry / "case.json").write_text("{")
    assert ran("corpus", "verify", corpus).out == "verified 0: no cases found\n"
    assert ran("corpus", "verify", corpus / "fleet").code == 2


def test_no_cluster_is_one_line(tmp_path):
    pytest.importorskip("ray")
    began = time.monotonic()
    for address in ("127.0.0.1:9", "host"):
        assert address in one_line("run", "--address", address, "--corpus", tmp_path / "corpus")
    assert time.monotonic() - began < 60
    assert not list(tmp_path.iterdir())

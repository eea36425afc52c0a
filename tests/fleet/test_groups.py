"""Which nodes make worlds together, as nodes come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from fuzzshard.fleet.cluster import ClusterNode
from fuzzshard.fleet.head import FleetOptions, _Head, _Member


class Groups:
    """A head of which no agent is called; ``said`` has its lines."""

    def __init__(self, corpus: Path, names: str) -> None:
        self.said: list[str] = []
        options = FleetOptions(corpus=corpus, options=(), world_nodes=2)
        self.head = _Head(options, "", "campaign", None, self.said.append)  # type: ignore[arg-type]
        for name in names:
            self.head._members[name] = _Member(ClusterNode(name, name, "127.0.0.1", {}))
        self.form()

    def form(self) -> None:
        """As if all that can answer had done so."""
        for member in self.head._in("starting"):
            if member.doing == "greet":
                member.doing = "wait"
        self.head._form_groups()
        for member in self.head._in("starting"):
            if member.doing == "place":
                member.state = "running"

    def lose(self, *names: str) -> None:
        for name in names:
            member = self.head._members[name]
            self.head._lose(member, "its node is gone")
            member.state = "lost"
            self.head._dissolve(member)

    def others(self) -> dict[str, tuple[str, ...] | None]:
        """Where the worlds of each campaign lie beside its own node."""
        running = self.head._in("running")
        return {m.label: self.head._others(m) for m in running if m.leader is m}

    def waiting(self) -> list[str]:
        return [member.label for member in self.head._waiting()]


def test_nodes_make_groups_and_what_is_left_takes_the_place_of_a_lost_one(tmp_path):
    groups = Groups(tmp_path, "abcde")
    assert groups.others() == {"a": ("b",), "c": ("d",)}
    assert groups.waiting() == ["e"]
    groups.lose("d")
    assert groups.others() == {"a": ("b",), "c": None}
    assert "c waits for another node" in groups.said
    groups.form()
    assert groups.others() == {"a": ("b",), "c": ("e",)}
    assert not groups.waiting()


def test_who_lent_ranks_to_a_campaign_that_is_gone_serves_another_one(tmp_path):
    groups = Groups(tmp_path, "abcd")
    groups.lose("a", "c")
    groups.form()
    assert groups.others() == {"b": ("d",)}


def test_of_two_campaigns_that_lack_a_node_one_helps_the_other(tmp_path):
    groups = Groups(tmp_path, "abcd")
    groups.lose("b", "d")
    groups.form()
    groups.form()
    assert groups.others() == {"a": ("c",)}


def test_a_node_that_waits_alone_does_not_end_a_fleet_that_has_not_begun(tmp_path):
    groups = Groups(tmp_path, "a")
    assert groups.waiting() == ["a"]
    assert not groups.head._is_over()

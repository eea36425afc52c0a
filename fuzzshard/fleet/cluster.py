"""A Ray cluster, as fleets use it. No other module imports Ray, which takes a second."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fuzzshard.errors import FuzzshardError, InfraError, UsageError
from fuzzshard.world.lender import Lender
from fuzzshard.world.nodes import reaching

# Read when Ray is imported. The head says itself which agents died; and a thread that is late must
# not start a cluster of its own.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

CONNECT_SECONDS = 5.0
LENDER_THREADS = 32
"""How many calls a lender serves at once: one listens to ranks, and the others are short."""

_nodes_of_ray: Callable[[], list[dict[str, Any]]] = ray.nodes


class ActorGone(Exception):
    """An actor has died, or has not answered in time."""


@dataclasses.dataclass(frozen=True)
class ClusterNode:
    """A node of the cluster that is alive."""

    id: str
    label: str
    address: str
    resources: Mapping[str, float]


@contextlib.contextmanager
def connected(address: str) -> Iterator[str]:
    """Connect to the cluster at ``address`` and yield that, also for ``auto``; raises
    :class:`UsageError` where there is none.
    """
    place = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    where = "on this machine" if place == "auto" else f"at {place}"
    remedy = "start one (ray start --head), or give the --address of one"
    host, _, port = place.rpartition(":")
    if place != "auto" and not (host and port.isdigit()):
        raise UsageError(f"the address {place} is not HOST:PORT", remedy)
    try:
        if place != "auto":  # Ray itself looks for it for more than five minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=place, log_to_driver=False, logging_level=logging.CRITICAL)
    except OSError:
        raise UsageError(f"there is no Ray cluster {where}", remedy) from None
    except RuntimeError as error:
        raise UsageError(
            f"the Ray cluster {where} cannot be used: {' '.join(str(error).split())}",
            "use the same Python and the same Ray as its nodes",
        ) from None
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def cluster_nodes() -> dict[str, ClusterNode]:
    """Return the nodes that are alive, by their ids."""
    return {
        node["NodeID"]: ClusterNode(
            node["NodeID"],
            f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
            node["NodeManagerAddress"],
            node["Resources"],
        )
        for node in _nodes_of_ray()
        if node["Alive"]
    }


def make_actor(kind: type, node: ClusterNode, *, threads: int = 1) -> Any:
    """Make an actor that takes all GPUs of ``node``, or its CPUs if it has none. It dies with this
    process, and is not started again.
    """
    gpus = int(node.resources.get("GPU", 0))
    made = ray.remote(kind).options(
        num_cpus=0 if gpus else int(node.resources.get("CPU", 0)),
        num_gpus=gpus,
        max_restarts=0,
        max_concurrency=threads,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    )
    return made.remote()


def end_actor(actor: Any) -> None:
    """Kill an actor, if there is one; it may be gone."""
    if actor is not None:
        with contextlib.suppress(RayError):
            ray.kill(actor)


def answered(calls: Sequence[Any]) -> list[Any]:
    """Return those of these calls of actors that have ended, after a second at most."""
    ready, _ = ray.wait(calls, num_returns=1, timeout=1.0)
    if ready:
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
    return list(ready)


def answer(call: Any, seconds: float | None = None) -> Any:
    """Return the result of a call of an actor, for which it waits.

    Raises the :class:`FuzzshardError` that the call raised, :class:`InfraError` for another
    exception, and :class:`ActorGone`.
    """
    try:
        return ray.get(call, timeout=seconds)
    except RayTaskError as error:
        if isinstance(error.cause, FuzzshardError):
            raise error.cause from None
        raise InfraError(first_line(error)) from None
    except RayError as error:
        raise ActorGone(str(error)) from None


@contextlib.contextmanager
def borrowing(address: str) -> Iterator[None]:
    """Let the worlds of this process lie on nodes of the cluster at ``address``."""

    def reach(id: str) -> _ToLender:
        if (node := cluster_nodes().get(id)) is None:
            raise InfraError(f"the cluster has no node {id}")
        return _ToLender(node)

    with connected(address), reaching(reach):
        yield


class _ToLender:
    """A :class:`fuzzshard.world.nodes.Connection`: an actor on ``node`` that dies with this
    process.
    """

    def __init__(self, node: ClusterNode) -> None:
        self.name, self.address = node.label, node.address
        self.our_address = ray.util.get_node_ip_address()
        self._actor = make_actor(Lender, node, threads=LENDER_THREADS)

    def ask(self, method: str, *arguments: Any, seconds: float | None) -> Any:
        """As :meth:`Connection.ask`."""
        try:
            return answer(getattr(self._actor, method).remote(*arguments), seconds)
        except ActorGone as error:
            raise ConnectionError(first_line(error)) from None

    def tell(self, method: str, *arguments: Any) -> None:
        """As :meth:`Connection.tell`."""
        getattr(self._actor, method).remote(*arguments)

    def end(self) -> None:
        """As :meth:`Connection.end`."""
        end_actor(self._actor)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else repr(error)

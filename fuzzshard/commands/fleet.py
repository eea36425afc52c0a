"""``fuzzshard fleet``: campaigns on the nodes of a Ray cluster."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.commands.mistakes import whole_numbers
from fuzzshard.commands.run import Wanted
from fuzzshard.commands.run import run as run_campaign
from fuzzshard.errors import UsageError
from fuzzshard.options import DEFAULT_CORPUS, Folder

OptionsOfRun = Annotated[str, Parameter(allow_leading_hyphen=True, show_default=False)]
Nodes = Annotated[
    int | Literal["all"],
    Parameter(metavar="INT|all"),
]


def run(
    *options: OptionsOfRun,
    corpus: Folder = DEFAULT_CORPUS,
    address: str = "auto",
    nodes: Nodes = "all",
    world_nodes: int = 1,
    local: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> int:
    """Run a campaign on each node of a Ray cluster, and gather what they find in one corpus.

    Takes all options of fuzzshard run but --exchange; limits and worlds are
    those of each node. An agent on each node takes all its GPUs, or its CPUs
    if it has none, and runs fuzzshard run on a local disk. Campaigns tell
    each other what they find and work on, as with run --exchange. Nodes may
    join, leave and return at any time. The same command goes on with a fleet
    that was killed or interrupted. In the corpus, fleet/ is the exchange of
    all nodes, for fuzzshard status; a file fleet/stop ends all campaigns.
    Needs pip install 'fuzzshard[fleet]' on every node.

    For example:
      fuzzshard fleet run --corpus fuzz --worlds auto --max-time 8h
      fuzzshard fleet run --corpus fuzz --address 10.0.0.1:6379 --nodes 4
      fuzzshard fleet run --corpus fuzz --world-nodes 2 --require mesh:hsdp

    Parameters
    ----------
    options
        Options of fuzzshard run. Files that they name must be there on every node.
    corpus
        The folder on this machine for the findings of all nodes.
    address
        The address of the cluster, HOST:PORT. auto finds the one of this machine.
    nodes
        How many nodes may take part at the same time.
    world_nodes
        How many nodes share each world. One of them runs the campaign, and
        the ranks of each world lie on all of them in equal shares.
    local
        A folder on the local disk of every node, for its campaign. By default one in the folder
        for temporary files.
    """
    words, seed = _words_of_run(options)
    if nodes != "all" and nodes < 1:
        raise UsageError(f"--nodes is {nodes}", "give more than 0, or leave it out")
    if world_nodes < 1 or (nodes != "all" and nodes < world_nodes):
        raise UsageError(
            f"--world-nodes is {world_nodes}", "give at least 1, and not more than --nodes"
        )
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "a fleet needs Ray, which is not installed", "pip install 'fuzzshard[fleet]'"
        )
    from fuzzshard.fleet.head import FleetOptions, run_fleet

    return run_fleet(
        FleetOptions(
            corpus=corpus,
            options=words,
            seed=seed,
            address=address,
            max_nodes=None if nodes == "all" else nodes,
            world_nodes=world_nodes,
            local="" if local is None else str(local.absolute()),
        )
    )


def _words_of_run(options: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """The options of ``fuzzshard run`` in ``options``, with full paths, and the seed by itself."""
    app = App(name="fuzzshard", print_error=False, exit_on_error=False)
    app.command(run_campaign, name="run", config=(whole_numbers,))
    _, bound, _ = app.parse_args(("run", *options), print_error=False, exit_on_error=False)
    asked = {**bound.arguments}
    for group in (asked.pop("campaign", CampaignOptions()), asked.pop("wanted", Wanted())):
        for field in dataclasses.fields(group):
            if (value := getattr(group, field.name)) != field.default:
                asked[field.name] = value
    for name in ("corpus", "exchange", "cluster", "nodes"):
        if name in asked:
            option = "node" if name == "nodes" else name
            raise UsageError(f"every node of a fleet has its own --{option}", "leave it out")
    seed = asked.pop("seed", None)
    words = [word for name, value in asked.items() for word in _words(name, value)]
    return tuple(words), seed


def _words(name: str, value: object) -> list[str]:
    option = f"--{name.removeprefix('as_').replace('_', '-')}"
    if isinstance(value, bool):
        return [option] if value else [option.replace("--", "--no-", 1)]
    if isinstance(value, tuple):
        return [word for each in value for word in _words(name, each)]
    return [option, str(value.absolute() if isinstance(value, Path) else value)]

"""The modules of a case as nested lists."""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block, Module, join
from fuzzshard.report.html.forward import group_colour
from fuzzshard.report.module_tree import ModuleNotes


@dataclasses.dataclass(frozen=True)
class Branch:
    """One module: its name, what it is, its parameters and badges, the class of its colour, its
    children.
    """

    name: str
    what: str
    parameters: list[str]
    badges: list[str]
    colour: str
    children: list[Branch]


def module_branches(case: Case) -> Branch:
    """The root; every registered module once, in registration order."""
    notes = ModuleNotes(case, facts(case))

    def branch(path: str, name: str, module: Module) -> Branch:
        wrapped = notes.groups.get(path)
        children = module.children if isinstance(module, Block) else ()
        return Branch(
            name=name,
            what=notes.what(path, module),
            parameters=notes.parameters(path, module),
            badges=notes.badges(path),
            colour="" if wrapped is None else group_colour(wrapped),
            children=[
                branch(join(path, child.name), child.name, child.module) for child in children
            ],
        )

    return branch("", "model", case.model)

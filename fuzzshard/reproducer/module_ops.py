"""The ops of a schedule that set something on modules, as statements."""

from __future__ import annotations

from fuzzshard.case.groups import root_groups, wrapped_modules
from fuzzshard.case.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.model.statements import at, indented
from fuzzshard.parts.op import Switch
from fuzzshard.reproducer.scope import Scope

WITH, END_WITH = "with no_sync", "end of no_sync"
"""Where the context manager begins and ends, until :func:`with_blocks` writes it."""


def with_blocks(lines: list[str]) -> list[str]:
    """``lines`` with a ``with`` statement from every :data:`WITH` to its end."""
    result, inside = [], False
    for line in lines:
        if line.startswith(WITH):
            result.append(f"with {line.removeprefix(WITH).strip()}:")
            inside = True
        elif line == END_WITH:
            inside = False
            result += ["    pass"] if result[-1].startswith("with ") else []
        else:
            result.append(f"    {line}" if inside else line)
    return [*result, "    pass"] if result and result[-1].startswith("with ") else result


def event_lines(scope: Scope) -> list[str]:
    """Records what ran until now, for the all-gathers of every FSDP root."""
    if not (scope.case.optimizer.does("hands_over_event") and scope.shards):
        return []
    roots = [scope.case.wrap[root].modules[0] for root in dict.fromkeys(root_groups(scope.case))]
    lines = ["event = torch.Event(device)", 'if device == "cuda":', "    event.record()"]
    for root in roots:
        module = at(scope.model, root)
        if scope.aim.trains_reference:
            scope.uses.add("FSDPModule")
        lines += scope.if_wrapped(module, [f"{module}.set_post_optim_event(event)"])
    return lines


class Flags:
    """Writes flags, and knows which gradients are synchronised."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.sync = SyncFlags(scope.case)

    @property
    def synced(self) -> bool:
        """Whether the engines that have one switch for everything synchronise now."""
        return self.sync.synced(UNMANAGED)

    def lines(self, switch: Switch) -> list[str]:
        """Sets one flag."""
        before = self.synced
        self.sync.set(switch)
        scope, below = self.scope, switch.below
        if scope.engine.wrapper:
            return [] if self.synced == before else self._no_sync(leave=not before)
        if not scope.engine.applies_groups:
            return [] if self.synced == before else self._switch(self.synced)
        call = f"set_{switch.flag}({switch.value}"
        if switch.flag == "is_last_backward":
            return scope.each_wrapped(below, lambda m: [f"{m}.{call})"])
        if below.target in wrapped_modules(scope.case) and scope.shards:
            module = at(scope.model, below.target)
            if scope.aim.trains_reference:
                scope.uses.add("FSDPModule")
            return scope.if_wrapped(module, [f"{module}.{call}{below.alone})"])
        return scope.each_wrapped(below, lambda m: [f"{m}.{call}, recurse=False)"])

    def _no_sync(self, *, leave: bool) -> list[str]:
        """Enters or leaves the context manager, which the schedule does in straight lines."""
        called = self.scope.called
        if self.scope.aim.seeded and leave:
            return [END_WITH]
        if self.scope.aim.seeded:
            both = f" if {called} is not reference else contextlib.nullcontext()"
            return [f"{WITH} {called}.no_sync(){both if self.scope.aim.trains_reference else ''}"]
        enter = [f"no_sync = {called}.no_sync()", "no_sync.__enter__()"]
        lines = ["no_sync.__exit__(None, None, None)"] if leave else enter
        if not self.scope.aim.trains_reference:
            return lines
        return [f"if isinstance({called}, {self.scope.engine.wrapper}):", *indented(lines)]

    def _switch(self, synced: bool) -> list[str]:
        line = self.scope.script.sync_line(self.scope.called, synced)
        return self.scope.unless_reference([line])

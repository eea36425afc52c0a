"""What is called on the modules that ``fully_shard`` has wrapped, as statements.

They are ``guarded`` where a plain model, which has none, runs them too.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzzshard.case.case import Case
from fuzzshard.case.groups import modules_named, root_groups, wrapped_modules
from fuzzshard.model.statements import at, indented
from fuzzshard.parts.op import Below, Op, Switch


def op_lines(case: Case, model: str, op: Op, *, guarded: bool = False) -> list[str]:
    """What an op calls on the modules that it is for."""
    if op.switch is not None:
        return _flag_lines(case, model, op.switch, guarded=guarded)
    below = op.below or Below()
    return _each_wrapped(case, model, below, lambda m: op.calls(m, case), guarded=guarded)


def _flag_lines(case: Case, model: str, switch: Switch, *, guarded: bool) -> list[str]:
    """The setters of a wrapped module go through those below it themselves, but for one."""
    below, call = switch.below, f"set_{switch.flag}({switch.value}"
    if switch.flag == "is_last_backward":
        return _each_wrapped(case, model, below, lambda m: [f"{m}.{call})"], guarded=guarded)
    if below.target in wrapped_modules(case):
        module = at(model, below.target)
        return if_wrapped(module, [f"{module}.{call}{below.alone})"], guarded=guarded)
    alone = f"{call}, recurse=False)"
    return _each_wrapped(case, model, below, lambda m: [f"{m}.{alone}"], guarded=guarded)


def _each_wrapped(
    case: Case, model: str, below: Below, calls: Callable[[str], list[str]], *, guarded: bool
) -> list[str]:
    """Calls something on every wrapped module that is meant."""
    module, named = at(model, below.target), modules_named(case, wrapped_modules(case), below)
    if not named:
        return []
    if named == [below.target]:
        return if_wrapped(module, calls(module), guarded=guarded)
    return [
        f"for module in {module}.modules():",
        *indented(if_wrapped("module", calls("module"), guarded=True)),
    ]


def if_wrapped(module: str, lines: list[str], *, guarded: bool) -> list[str]:
    """``lines``, which are for a wrapped module alone."""
    return [f"if isinstance({module}, FSDPModule):", *indented(lines)] if guarded else lines


def event_lines(case: Case, model: str, *, guarded: bool = False) -> list[str]:
    """Record what ran until now, for the all-gathers of every FSDP root, where the case says so.

    "This API should be called with a new event each iteration" (``set_post_optim_event``); and
    whenever parameters have changed since, as the all-gathers wait for nothing else then. Work on
    the CPU is done when the step returns, so an event there need not be recorded, and cannot be.
    """
    if not (case.optimizer.does("hands_over_event") and case.wrap):
        return []
    lines = ["event = torch.Event(device)", 'if device == "cuda":', "    event.record()"]
    for root in dict.fromkeys(root_groups(case)):
        module = at(model, case.wrap[root].modules[0])
        lines += if_wrapped(module, [f"{module}.set_post_optim_event(event)"], guarded=guarded)
    return lines

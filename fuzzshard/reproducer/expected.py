"""What must happen in an op, or in a whole run: errors, warnings, collectives, hooks."""

from __future__ import annotations

import re

from fuzzshard.case.case import Case
from fuzzshard.case.options import Expect
from fuzzshard.errors import UsageError
from fuzzshard.model.statements import at, indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import names_rank
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.scope import Scope

FORWARD_ORDER = "Forward order differs"
"""How FSDP1 begins to say that ranks, or iterations, run their units in different orders."""

_COUNTS = re.compile(r"(\d+)(?: to (\d+))?")

RECORD = """
calls = []


def recorded(name, collective):
    def call(*args, **kwargs):
        sizes = [a.numel() for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        calls.append(f"{name}{sizes}")
        return collective(*args, **kwargs)

    return call


for name in (
    "all_reduce broadcast all_gather all_gather_into_tensor all_gather_single reduce_scatter "
    "reduce_scatter_tensor reduce_scatter_single all_to_all_single"
).split():
    if hasattr(dist, name):
        setattr(dist, name, recorded(name, getattr(dist, name)))
"""

RECORD_KIND = """
calls = []


def recorded(collective):
    def call(*args, **kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        calls.append(({size}(t.numel() for t in tensors), str(tensors[0].dtype)[6:]))
        return collective(*args, **kwargs)

    return call


for name in {names}:
    if hasattr(dist, name):
        setattr(dist, name, recorded(getattr(dist, name)))
"""

RECORD_HOOKS = """
# the modules of every group whose post-backward ran before the end of the whole backward
hooks = []
post_backward = FSDPParamGroup.post_backward
end = FSDPState._root_post_backward_final_callback
ending = False


def recorded(group, *args):
    if not ending:
        hooks.append(group.modules)
    return post_backward(group, *args)


def recorded_end(state):
    global ending
    ending = True
    end(state)
    ending = False


FSDPParamGroup.post_backward = recorded
FSDPState._root_post_backward_final_callback = recorded_end
"""

_ENTRY_POINTS = {
    "all-gathers": ("all_gather_into_tensor", "all_gather_single"),
    "reduce-scatters": ("reduce_scatter_tensor", "reduce_scatter_single"),
    "all-reduces": ("all_reduce",),
}


def recording_lines(aim: Aim) -> list[str]:
    """What has to be patched before the model is wrapped."""
    match aim.kind:
        case "collectives":
            return RECORD.strip().splitlines()
        case "communication":
            size = "max" if aim.name == "all-gathers" else "min"
            source = RECORD_KIND.replace("{size}", size).replace(
                "{names}", str(_ENTRY_POINTS[aim.name])
            )
            return source.strip().splitlines()
        case "hooks":
            if not spec_of(aim.engine).applies_groups:
                raise UsageError(
                    "no script can be written for the hooks of FSDP1", "replay the case"
                )
            return RECORD_HOOKS.strip().splitlines()
        case "warning":
            enter = ["caught = warnings.catch_warnings(record=True)", "log = caught.__enter__()"]
            return [*enter, 'warnings.simplefilter("always")']
        case _:
            return []


def expecting(case: Case, aim: Aim, lines: list[str]) -> list[str]:
    """The statements of the op that is looked at, and what they must do."""
    match aim.kind:
        case "communication":
            return ["calls.clear()", *lines, *_communication(aim)]
        case "hooks":
            return ["hooks.clear()", *lines, *_hooks(aim)]
        case _:
            due = Expect(kind="error", engine=aim.engine, pattern=aim.expected, op=aim.op or 0)
            own = (e for e in case.expect if e.engine == aim.engine and e.op == aim.op)
            return _error(next(own, due), lines)


def _communication(aim: Aim) -> list[str]:
    message = f'text = f"rank {{rank}}: expected {aim.expected} {aim.name}, observed {{calls}}"'
    if counts := _COUNTS.fullmatch(aim.expected):
        fewest, most = counts[1], counts[2] or counts[1]
        right = f"len(calls) == {most}" if fewest == most else f"{fewest} <= len(calls) <= {most}"
    elif aim.expected.startswith("of "):
        sizes = [int(size) for size in re.findall(r"\d+", aim.expected)]
        right = (
            f"{{size for size, _ in calls}} <= {set(sizes)}"
            if aim.name == "all-gathers"
            else f"sorted(size for size, _ in calls) == {sizes}"
        )
    else:
        right = f"{{dtype for _, dtype in calls}} == {set(aim.expected.split(' and '))}"
    return [message, f"assert {right}, text"]


def _hooks(aim: Aim) -> list[str]:
    wanted = int(aim.expected.split()[0])
    module = at("model", aim.name.split(", ")[0].replace("the root", ""))
    return [
        f"observed = sum({module} in modules for modules in hooks)",
        f'assert observed == {wanted}, f"rank {{rank}}: {{observed}} post-backwards of '
        f'{aim.name}"',
    ]


def _error(expect: Expect, lines: list[str]) -> list[str]:
    body = [
        "try:",
        *indented(lines or ["pass"]),
        "except Exception as error:",
        f"    assert re.search({expect.pattern!r}, str(error)), error",
        "else:",
        f'    raise AssertionError("nothing raised {expect.pattern}")',
    ]
    if expect.ranks == "all":
        return body
    return ["if dist.get_rank() > 0:", *indented(body), "else:", *indented(lines or ["pass"])]


def warning_lines(scope: Scope) -> list[str]:
    """How often a warning must have been heard in the whole run."""
    expected = [e for e in scope.expectations if e.kind == "warning"]
    lines = ["heard = [str(warning.message) for warning in log]"]
    for pattern in dict.fromkeys(e.pattern for e in expected) or {FORWARD_ORDER: None}:
        everyone, others = (
            sum(names_rank(e.ranks, rank) for e in expected if e.pattern == pattern)
            for rank in (0, 1)
        )
        due = (
            str(everyone)
            if everyone == others
            else f"({others} if dist.get_rank() > 0 else {everyone})"
        )
        lines.append(f"found = [text for text in heard if re.search({pattern!r}, text)]")
        lines.append(f'assert len(found) == {due}, f"rank {{rank}}: {{found}}"')
    return lines

"""Which lines a branch leads from and to, by what the bytecode says."""

import dis
import itertools

from fuzzshard.training.torch_coverage import _line_at, _next_line


def walk(values, wanted):
    found = []
    for value in values:
        if value == wanted:
            found.append(value)
        else:
            found.append(None)
    return found


CODE = walk.__code__
FIRST = CODE.co_firstlineno


def destinations(line):
    """What the jumps of a line lead to, and what follows them, as lines counted from the
    function's first.
    """
    found = set()
    instructions = list(dis.get_instructions(CODE))
    for instruction, following in itertools.pairwise(instructions):
        is_branch = "FOR_ITER" in instruction.opname or "POP_JUMP" in instruction.opname
        if is_branch and _line_at(CODE, instruction.offset) == FIRST + line:
            for offset in (instruction.argval, following.offset):
                found.add(_next_line(CODE, offset, FIRST + line) - FIRST)
    return found


def test_an_if_leads_to_both_its_sides():
    assert destinations(3) == {4, 6}


def test_a_loop_leads_into_its_body_and_behind_it():
    assert destinations(2) == {3, 7}


def test_what_leads_nowhere_leads_to_the_end_of_the_function():
    last = list(dis.get_instructions(CODE))[-1]
    assert _next_line(CODE, last.offset + 2, FIRST + 7) == -FIRST

"""Mends on this process's torch: on a module of torch that a test has made up, and on torch
itself.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.nn.functional
from mend_files import mend_file

from fuzzshard.mending.patch import Mended
from fuzzshard.mending.trips import forget_trips

AddModule = Callable[[str], ModuleType]


class Switch:
    """Puts mends on, by what their files say, and takes all of them off in the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mended = Mended()
        self._written = 0

    def write(self, *bodies: str, component: str = "fully_shard") -> tuple[str, ...]:
        """The names of mends with these bodies."""
        self._written += len(bodies)
        return tuple(
            str(
                mend_file(
                    self._folder, f"mend_{self._written}_{number}", body, component=component
                )
            )
            for number, body in enumerate(bodies)
        )

    def on(self, *names: str, compiles: bool = False) -> None:
        self._mended.switch(names, compiles=compiles)

    def edit(self, *edits: tuple[str, str, str]) -> None:
        """Puts one mend on with edits of ``torch.made_up``: function, old lines, new lines."""
        made = ", ".join(
            f"Edit('torch.made_up:{name}', {old!r}, {new!r})" for name, old, new in edits
        )
        self.on(*self.write(f"EDITS = ({made},)"))

    def ran(self) -> tuple[str, ...]:
        return self._mended.ran()

    def off(self) -> None:
        self.on()


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    switch = Switch(tmp_path / "mends")
    yield switch
    switch.off()


def test_whoever_holds_a_function_runs_the_edited_lines(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module(
        """
        def f():
            return "wrong"

        class Owner:
            def g(self):
                return "wrong"
        """
    )
    f, hook, bound = made_up.f, functools.partial(made_up.f), made_up.Owner().g
    module = torch.nn.Identity()
    module.register_forward_hook(lambda *_: hook())
    switch.edit(("f", "return 'wrong'", "return 1"))
    assert made_up.f is f
    assert (f(), hook(), module(0)) == (
        "wrong",
        "wrong",
        "wrong",
    )  # the quotes are not those of torch
    switch.edit(("f", 'return "wrong"', "return 1"), ("Owner.g", 'return "wrong"', "return 2"))
    assert made_up.f is f
    assert (f(), hook(), module(0), bound()) == (1, 1, 1, 2)
    switch.off()
    assert (f(), hook(), module(0), bound()) == ("wrong",) * 4


def test_taking_off_is_exact(torch_module: AddModule, switch: Switch) -> None:
    f = torch_module("def f(x=3):\n    return x\n").f
    before = f.__code__, f.__defaults__, dict(vars(f))
    switch.edit(("f", "return x", "return -x"))
    assert f() == -3
    switch.off()
    assert f.__code__ is before[0]
    assert (f.__defaults__, vars(f)) == before[1:]


def test_functions_below_decorators_are_edited(torch_module: AddModule, switch: Switch) -> None:
    made_up = torch_module(
        """
        import functools
        import torch

        def twice(function):
            @functools.wraps(function)
            def call(*args):
                return 2 * function(*args)
            return call

        @twice
        @torch.no_grad()
        def f(x):
            return x + 1
        """
    )
    x = torch.ones((), requires_grad=True)
    switch.edit(("f", "return x + 1", "return x + 2"))
    assert made_up.f(x) == 6
    assert not made_up.f(x).requires_grad
    switch.off()
    assert made_up.f(x) == 4


def test_super_private_names_and_closures_of_classes_mean_what_they_meant(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module(
        """
        class Base:
            def f(self):
                return ["base"]

        class Owner(Base):
            class Inner(Base):
                def f(self):
                    return super().f()

            def __init__(self):
                self.__private = "private"

            def f(self):
                found = super().f()
                return found
        """
    )
    switch.edit(
        ("Owner.f", "return found", "return [*found, self.__private, __class__.__name__]"),
        ("Owner.Inner.f", "return super().f()", "return [*super().f(), 'inner']"),
    )
    assert made_up.Owner().f() == ["base", "private", "Owner"]
    assert made_up.Owner.Inner().f() == ["base", "inner"]


def test_properties_class_methods_and_static_methods_are_edited(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module(
        """
        import torch

        class Owner:
            @property
            def a(self):
                return 0

            @classmethod
            def b(cls):
                return 0

        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 3
        """
    )
    x = torch.ones((), requires_grad=True)
    switch.edit(
        ("Owner.a", "return 0", "return type(self).__name__"),
        ("Owner.b", "return 0", "return cls.__name__"),
        ("Doubled.backward", "return grad * 3", "return grad * 2"),
    )
    assert (made_up.Owner().a, made_up.Owner.b()) == ("Owner", "Owner")
    made_up.Doubled.apply(x).backward()
    assert x.grad == 2
    switch.off()
    assert made_up.Owner().a == 0
    x.grad = None
    made_up.Doubled.apply(x).backward()
    assert x.grad == 3


def test_lines_before_an_edit_keep_their_numbers(torch_module: AddModule, switch: Switch) -> None:
    made_up = torch_module(
        """
        import functools

        class Owner:
            @functools.cache
            def f(self):
                before = 1 / self.x

                return before
        """
    )
    owner = made_up.Owner()
    owner.x = 0

    def frame() -> traceback.FrameSummary:
        with pytest.raises(ZeroDivisionError) as caught:
            owner.f()
        return traceback.extract_tb(caught.value.__traceback__)[-1]

    before = frame()
    assert before.line == "before = 1 / self.x"
    switch.edit(("Owner.f", "return before", "after = before\nreturn after"))
    assert (frame().filename, frame().lineno, frame().line) == (
        before.filename,
        before.lineno,
        before.line,
    )


def test_annotations_that_the_file_postpones_are_not_evaluated(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module(
        """
        from __future__ import annotations

        def f():
            def inner(x: NotImported) -> NotImported:
                return x
            return inner(1)
        """
    )
    switch.edit(("f", "return inner(1)", "return inner(2)"))
    assert made_up.f() == 2


def test_two_mends_of_one_function_are_both_on(torch_module: AddModule, switch: Switch) -> None:
    made_up = torch_module("def f():\n    x = 1\n    y = 1\n    return x, y\n")
    first, second = switch.write(
        "EDITS = (Edit('torch.made_up:f', 'x = 1', 'x = 2'),)",
        "EDITS = (Edit('torch.made_up:f', 'y = 1', 'y = 3'),)",
    )
    switch.on(first, second)
    assert made_up.f() == (2, 3)
    switch.on(second)
    assert made_up.f() == (1, 3)
    switch.off()
    assert made_up.f() == (1, 1)


def test_a_mend_that_does_not_fit_is_left_out_and_the_others_are_on(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module("def f():\n    x = 1\n    return x\n")
    switch.on(
        *switch.write(
            "EDITS = (Edit('torch.made_up:f', 'x = 1', 'x = 2'), Edit('torch.made_up:g', 'x', "
            "'y'))\n"
            "def apply(patch):\n    raise AssertionError('it does not fit')",
            "EDITS = (Edit('torch.made_up:f', 'return x', 'return -x'),)",
        )
    )
    assert made_up.f() == -1


def test_a_function_that_a_preloaded_file_has_wrapped_is_edited_where_that_keeps_it(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module(
        """
        class Owner:
            def f(self):
                return 1

        def g():
            return 1
        """
    )

    def planted(f: Callable[..., int]) -> Callable[..., int]:
        return lambda *arguments: 10 * f(*arguments)

    def g() -> int:
        return 30

    made_up.Owner.f, made_up.g = planted(made_up.Owner.f), g
    switch.edit(("Owner.f", "return 1", "return 2"))
    assert (made_up.Owner().f(), made_up.g()) == (20, 30)
    switch.edit(("Owner.f", "return 1", "return 2"), ("g", "return 1", "return 2"))
    assert (made_up.Owner().f(), made_up.g()) == (10, 30)


@pytest.mark.parametrize("planted", ["return x + 30", "return 3 - x"])
def test_a_function_that_a_preloaded_file_has_rewritten_with_the_same_names_is_left_alone(
    planted: str, torch_module: AddModule, switch: Switch
) -> None:
    filed = "def f():\n    x = 1\n    return x + 3\n"
    made_up = torch_module(filed)
    exec(filed.replace("return x + 3", planted), vars(made_up))
    expected = made_up.f()
    switch.edit(("f", "x = 1", "x = 2"))
    assert made_up.f() == expected


PATCHES = """\
def apply(patch):
    import torch.made_up as made_up
    patch(made_up.Owner, "kept", 2)
    patch(made_up.Owner, "inherited", 2)
    patch(made_up.Owner, "added", 2)
    patch(made_up.Owner, "called", staticmethod(lambda: 2))
    patch(made_up.value, "field", 2)
"""


def test_what_apply_sets_is_taken_off(torch_module: AddModule, switch: Switch) -> None:
    made_up = torch_module(
        """
        from types import SimpleNamespace

        class Base:
            inherited = 1

        class Owner(Base):
            kept = 1

            @staticmethod
            def called():
                return 1

        value = SimpleNamespace(field=1)
        """
    )
    owner, static = made_up.Owner, vars(made_up.Owner)["called"]
    names = set(vars(owner))
    switch.on(*switch.write(PATCHES))
    assert (owner.kept, owner.inherited, owner.added, owner.called(), made_up.value.field) == (
        2,
    ) * 5
    switch.off()
    assert (owner.kept, owner.inherited, owner.called(), made_up.value.field) == (1,) * 4
    assert set(vars(owner)) == names
    assert vars(owner)["called"] is static


def test_a_mend_of_the_compilers_is_on_only_where_a_case_compiles(
    torch_module: AddModule, switch: Switch
) -> None:
    made_up = torch_module("def f():\n    return 1\n")
    (compilers,) = switch.write(
        "EDITS = (Edit('torch.made_up:f', 'return 1', 'return 2'),)", component="compile"
    )
    switch.on(compilers)
    assert made_up.f() == 1
    switch.on(compilers, compiles=True)
    assert made_up.f() == 2
    switch.on(compilers)
    assert made_up.f() == 1


def test_functions_of_torch_itself_are_edited_and_come_back(switch: Switch) -> None:
    """One that only a decorator sees, methods, one that calls super(), static ones of autograd."""
    edits: dict[str, tuple[Any, str]] = {
        "torch.nn.modules.linear:Linear.forward": (
            torch.nn.Linear.forward,
            "return F.linear(input, self.weight, self.bias)",
        ),
        "torch.optim.sgd:SGD.__setstate__": (
            torch.optim.SGD.__setstate__,
            "super().__setstate__(state)",
        ),
        "torch.optim.sgd:SGD.step": (
            inspect.unwrap(torch.optim.SGD.step),
            "loss = None",
        ),
        "torch.distributed.nn.functional:_AllReduce.forward": (
            torch.distributed.nn.functional._AllReduce.forward,
            "ctx.group = group",
        ),
    }
    codes = {target: function.__code__ for target, (function, _) in edits.items()}
    switch.on(
        *switch.write(
            *(
                f"EDITS = (Edit({target!r}, {old!r}, 'mended = 1; {old}'),)"
                for target, (_, old) in edits.items()
            )
        )
    )
    for target, (function, _) in edits.items():
        assert "mended" in function.__code__.co_varnames, target
        assert function.__code__.co_freevars == codes[target].co_freevars
    linear = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(linear.parameters())
    linear(torch.ones(2)).sum().backward()
    optimizer.step()
    optimizer.__setstate__(optimizer.__getstate__())
    switch.off()
    assert all(function.__code__ is codes[target] for target, (function, _) in edits.items())


def test_which_mends_a_case_ran_is_noted(torch_module: AddModule, switch: Switch) -> None:
    """A mend of which no edited function ran may be left out, and nothing is different."""
    made_up = torch_module(
        """
        def f(x):
            "Adds."
            return x + 1

        class Owner:
            def g(self):
                return 0
        """
    )
    lines = (("f", "return x + 1", "return x + 2"), ("Owner.g", "return 0", "return 1"))
    edits = (f"EDITS = (Edit('torch.made_up:{n}', {old!r}, {new!r}),)" for n, old, new in lines)
    of_f, of_g, applied = switch.write(*edits, "def apply(patch): pass")
    switch.on(of_f, of_g, applied)
    forget_trips()
    assert (made_up.f(1), made_up.f.__doc__) == (3, "Adds.")
    assert set(switch.ran()) == {of_f, applied}  # of what is applied nobody knows what it changes
    forget_trips()
    assert made_up.Owner().g() == 1
    assert set(switch.ran()) == {of_g, applied}
    switch.on(of_f, of_g, compiles=True)  # where Dynamo would trace whatever notes it
    assert set(switch.ran()) >= {of_f, of_g}

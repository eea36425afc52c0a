"""What the scripts of every engine say in its own words; generic code writes everything else.

Torch-free, as are the files ``script.py`` of the engines: the coordinator writes scripts.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.statements import at

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.program.mesh import MeshNames
    from fuzzshard.subject.subject import Variation


class EngineScript:
    """By default a model that is trained as it is."""

    variable: ClassVar[str] = "model"
    """The variable of what it puts around the model, where both have one."""
    made: ClassVar[tuple[str, ...]] = ()
    """Other variables of what it puts around the model, or within it."""
    sources: ClassVar[str] = ""
    """What its statements import and no others do, and the functions that they call
    (:attr:`fuzzshard.parts.op.Op.sources`).
    """
    has_dtensors: ClassVar[bool] = False
    """Whether parameters may be DTensors."""
    wraps_blocks: ClassVar[bool] = False
    """Whether it wraps the repeated blocks of a model of the user's own one by one, and then the
    model.
    """

    def argument(self, case: Case, variable: str) -> str:
        """Return what a forward is given where the plain model gets a ``variable``."""
        return variable

    def whole(self, case: Case, output: str) -> str:
        """Return what the plain model has for an ``output`` that may be a DTensor."""
        return f"unsharded({output})"

    def moves_inputs(self, case: Case, target: str) -> bool:
        """Return whether a forward of ``target`` moves inputs from the host to the device."""
        return False

    def flat_units(self, case: Case) -> Mapping[str, tuple[str, ...]]:
        """Return the units whose flat parameters are registered in place of those of modules, by
        path, each with the FQNs of these.
        """
        return {}

    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        """Parallelise ``model`` in place, or assign to ``variable`` what is put around it."""
        return []

    def model_lines(self, blocks: Sequence[str], variation: Variation) -> list[str]:
        """Wrap ``model`` of the user's own as people do, its ``blocks`` first if the engine wraps
        blocks; ``mesh`` has the data-parallel axes.

        Only engines whose own class has it wrap such models, which say nothing of wrap groups.
        """
        raise NotImplementedError

    def parameter(self, model: str, fqn: str) -> str:
        """Return the expression for what is registered at an FQN of ``model``."""
        return at(model, fqn)

    def named_parameter(self, model: str, name: str) -> str:
        """Return the same for the FQN that the expression ``name`` gives."""
        return f"{model}.get_parameter({name})"

    def sync_line(self, called: str, synced: bool) -> str:
        """Switch synchronisation, where it has neither flags nor ``no_sync()``."""
        raise NotImplementedError

    def no_sync_lines(self, case: Case, entering: str) -> list[str]:
        """Return how a block within ``no_sync()`` begins, which the line ``entering`` enters."""
        return []

    def finalize_lines(self, case: Case, called: str) -> list[str]:
        """Return what the user has to call after a backward that synchronises something."""
        return []

    def join_text(self, case: Case, called: str, arguments: str) -> str:
        """Write the context in which ranks may have inputs of different numbers."""
        return ""

    def optimizer_call(self, kind: str, arguments: list[str], names: MeshNames) -> str:
        """Return the call that makes an optimizer of this kind."""
        return f"{kind}({', '.join(arguments)})"

    def scaler_call(self, arguments: list[str], names: MeshNames) -> str:
        """Return the call that makes what scales losses."""
        return f"torch.amp.GradScaler({', '.join(arguments)})"

    def clip_line(self, called: str, arguments: str) -> str:
        """Return its own way to clip the norm of all gradients, if it has one."""
        return ""

    def overflow_lines(self, case: Case, called: str, parameters: str, which: int) -> list[str]:
        """Return its own way to make one element of a gradient infinite, if it has one."""
        return []

    def beside_step(self, case: Case, called: str) -> tuple[list[str], list[str]]:
        """Return what a case does before every step, and after it."""
        return [], []

    def schedule_lines(self, case: Case, count: int) -> list[str]:
        """Assign to ``schedule`` what runs ``count`` microbatches at once, each with the loss
        ``loss_fn(output, place)``; ``stages`` are those of this rank.

        Only engines whose spec says ``in_stages`` have this and :meth:`run_lines`.
        """
        raise NotImplementedError

    def run_lines(
        self, case: Case, batches: Sequence[str], *, mode: str, finalizes: bool
    ) -> list[str]:
        """Run forwards and backwards of all ``batches`` with that schedule, which perhaps
        ``finalizes`` the gradients of all iterations since it last did; or forwards alone,
        under the context manager ``mode`` of ``torch``. They return ``out`` and ``losses``, unless
        a case asks for fewer.
        """
        raise NotImplementedError

    def gathered_lines(self, case: Case, called: str, value: str, *, gradient: bool) -> list[str]:
        """Return the whole of a parameter of which a rank has a part, or of its gradient."""
        raise NotImplementedError


@functools.cache
def engine_script(engine: str) -> EngineScript:
    """Return what the scripts of the engine of that name say."""
    if engine not in ENGINES:
        return EngineScript()
    found: EngineScript = importlib.import_module(f"fuzzshard.engines.{engine}.script").SCRIPT
    return found

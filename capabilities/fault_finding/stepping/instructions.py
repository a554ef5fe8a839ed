"""From a wrong tensor down to the instruction: on targets whose kernels are executed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilesmith.capabilities.fault_finding.stepping.steps import Hooks, Look, run_steps
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
from tilesmith.compiler.recipe.program import KernelStep, Step
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import TilesmithError


def wrong_instruction(
    executable: Executable, inputs: Mapping[str, Any], number: int
) -> WrongInstruction | None:
    """The first instruction of a step whose output differs, on the operands that it has in the
    model; None where none does or that cannot be told."""
    recipe = executable.recipe
    instructions: list[WrongInstruction | None] = []

    def before(at: int, step: Step, look: Look) -> None:
        if at == number and isinstance(step, KernelStep):
            backend = backend_of(recipe.target)
            try:
                instructions.append(backend.wrong_instruction(recipe, step, look.workspace.memory))
            except TilesmithError:  # too large, or no program comes of it any more
                return

    try:
        run_steps(executable, inputs, Hooks(lambda _: False, before=before))
    except TilesmithError:
        if not instructions:
            return None
    return instructions[0] if instructions else None

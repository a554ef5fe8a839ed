"""Rows picked by numbers in memory: Gather of MEM."""

from __future__ import annotations

from tilesmith.codegen.lpu.selection.accesses import Environment
from tilesmith.codegen.lpu.selection.nests import Nest
from tilesmith.codegen.lpu.selection.state import State
from tilesmith.search_space.errors import CodegenError


def gather(state: State, nest: Nest, around: Environment) -> None:
    """Chains of a nest that picks rows."""
    raise CodegenError(f"stage '{nest.block.stage}' picks rows, which is not selected yet")

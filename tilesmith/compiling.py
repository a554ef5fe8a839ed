"""From model files to graphs, workloads, executables and artifacts, for the front door's jobs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from search_space.target import Target
from tilesmith.subjects import WeightedWorkload, is_model, workloads_of

if TYPE_CHECKING:
    from compiler.executable import Executable
    from tilesmith.subjects import Model, Subject

Shapes = Mapping[str, tuple[int, ...]]

ARTIFACT_SUFFIX = ".tsm"


def workloads_in(
    subject: Subject, shapes: Shapes | None, target: Target
) -> tuple[list[WeightedWorkload], tuple[str, ...]]:
    """The distinct workloads of a model (or those given), and notes for the reader.

    Raises:
        ModelError: the model cannot be read, or none of its operators has a template.
    """
    if not is_model(subject):
        return workloads_of(subject), ()  # type: ignore[arg-type]
    raise AssertionError


def build_executable(
    model: Model,
    target: Target,
    database: str | Path | None,
    shapes: Shapes | None = None,
    threads: int = 1,
    require_tuned: bool = False,
) -> Executable:
    """Compile a model with a database's schedules (None: with defaults only)."""
    from compiler.build import build
    from compiler.onnx_import import import_model

    graph = import_model(model, shapes)
    with ExitStack() as stack:
        opened = None
        if database is not None:
            from records.database import Database

            opened = stack.enter_context(Database.open(str(database), create=False))
        return build(graph, target, opened, threads=threads, require_tuned=require_tuned)

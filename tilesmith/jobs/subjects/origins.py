"""Which file an executable in memory was compiled from: whoever compares it needs the model.

Invariant: executables are not kept alive by it, and models in memory are not kept at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.subject import Compiled, Model

_MODELS: WeakKeyDictionary[Compiled, Path] = WeakKeyDictionary()


def remember(executable: Compiled, model: Model) -> None:
    """Keep in mind the file of an executable that was made of one."""
    if isinstance(model, str | Path):
        _MODELS[executable] = Path(model)


def model_of(executable: Compiled) -> Path | None:
    """The file that `remember` was told."""
    return _MODELS.get(executable)

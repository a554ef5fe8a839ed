"""Families of architectures by the name their public configurations give: see `architectures/`."""

from __future__ import annotations

from collections.abc import Callable

from tilesmith.planning.architecture import Architecture
from tilesmith.planning.configuration import Configuration
from tilesmith.search_space.errors import ModelError
from tilesmith.search_space.registry import Registry

Reader = Callable[[Configuration], Architecture]

families: Registry[Reader] = Registry(
    "architecture", "tilesmith.planning.architectures", ModelError
)
"""Readers of configurations by `model_type` (transformers) or `_class_name` (diffusers)."""

"""Families of architectures by the name their public configurations give: see `architectures/`."""

from collections.abc import Callable

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.registry import Registry

Reader = Callable[[Configuration], Architecture]

families: Registry[Reader] = Registry(
    "architecture", "tilesmith.capabilities.planning.architectures", ModelError
)
"""Readers of configurations by `model_type` (transformers) or `_class_name` (diffusers)."""

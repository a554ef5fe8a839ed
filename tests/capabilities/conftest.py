"""What tests of capabilities share with those of the core: verified passes, small models."""

from __future__ import annotations

from tests.compiler.conftest import light_resnet50, verified_passes
from tests.end_to_end.conftest import model

__all__ = ["light_resnet50", "model", "verified_passes"]

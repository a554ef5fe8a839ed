"""The cores that streams are written for are those they are simulated on."""

from __future__ import annotations

from tests.families.trainium.codegen.conftest import rng, trn1, trn2

__all__ = ["rng", "trn1", "trn2"]

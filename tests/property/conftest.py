"""These tests compile: they share the temporary code cache of the code generation tests."""

from tests.codegen.conftest import code_cache

__all__ = ["code_cache"]

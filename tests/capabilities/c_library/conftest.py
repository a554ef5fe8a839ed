"""What tests of libraries need of the machine."""

from tests.codegen.conftest import needs

__all__ = ["needs"]

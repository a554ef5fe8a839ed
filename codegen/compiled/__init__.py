"""`@compiled`: loops over tables of numbers, written in plain Python, run as native code."""

from tilesmith.codegen.compiled.function import NativeFunction, compiled
from tilesmith.codegen.compiled.signature import Floats, Ints, Singles

__all__ = ["Floats", "Ints", "NativeFunction", "Singles", "compiled"]

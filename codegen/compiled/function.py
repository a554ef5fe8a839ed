"""`NativeFunction`: a function of the subset below, translated and run as native code on first
call.

The passes over instruction streams (dependences, scheduling, timeline) look at a hundred thousand
instructions or more, each step depending on the last, so numpy cannot batch them. They are written
as ordinary Python functions and remain callable as Python (`.python`), which the tests use as the
reference; objects are kept on disk (`object_cache`). Whatever is not in the subset is refused with
a `TranslationError` that names the line: what is translated computes what Python computes, up to
the preconditions below.

The subset:

- parameters annotated `int`, `float`, `Ints` (array of int64), `Floats` (float64), `Singles`
  (float32), or a table of such (`signature`); a result annotated `int`, `float` or `None`;
- locals of type int, float, bool, or single: an element of `Singles`, and all that is computed of
  one, is rounded to float32, as numpy does it; `float(...)` converts it;
- the type of a local is fixed by its first assignment; a bool becomes an int, an int a float where
  one is expected, the reverse is written `int(...)`; locals are read where surely assigned;
- `for i in range(...)` with a constant step, `while`, `if`, `break`, `continue`, `return`, `pass`;
- `+ - *`, `//` and `%` of ints, `/`, comparisons of two, `and`, `or`, `not`, `min`, `max`, `float`,
  `int`; elements of arrays and fields of tables; int and float constants of the module;
- calls of other compiled functions, which are inlined; what one of them writes is not passed twice.

Preconditions, which nobody checks: ints, and all results, fit 64 bits; ints that become floats are
below 2**53; indices are within the array and not negative; nothing is divided by zero.
"""

import ctypes
import hashlib
from collections.abc import Callable
from itertools import repeat
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tilesmith.codegen.compiled.signature import ARRAYS, FunctionSignature, FunctionSource
from tilesmith.codegen.host import object_cache

if TYPE_CHECKING:
    from tilesmith.codegen.compiled.translator import Translator

P = ParamSpec("P")
R = TypeVar("R")


class NativeFunction(Generic[P, R]):
    """A function of the subset; calling it runs native code. See the module's docstring."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._native: Callable[..., Any] | None = None
        self._signature: FunctionSignature | None = None
        self._written: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return str(self.function.__code__.co_name)

    @property
    def helpers(self) -> "dict[str, NativeFunction[..., Any]]":
        """The compiled functions that this one calls, by name."""
        known = self.function.__globals__
        referenced = {name: known.get(name) for name in self.function.__code__.co_names}
        return {
            name: value for name, value in referenced.items() if isinstance(value, NativeFunction)
        }

    @property
    def python(self) -> Callable[P, R]:
        """The function as plain Python, its helpers too."""
        helpers = {name: helper.python for name, helper in self.helpers.items()}
        return FunctionType(self.function.__code__, {**self.function.__globals__, **helpers})

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Run native code, translated on the first call.

        Raises:
            TranslationError: the function uses what is not in the subset.
            TypeError: arguments are not what the parameters' annotations say.
        """
        if self._native is None or self._signature is None:
            self._signature, self._written, self._native = _build(self)
        parameters = self._signature.parameters
        if named or len(arguments) != len(parameters):
            raise TypeError(f"{self.name} takes {len(parameters)} arguments by position")
        values: list[Any] = []
        for parameter, argument in zip(parameters, arguments, strict=True):
            if parameter.table:
                values += [getattr(argument, field) for field, _ in parameter.table]
            else:
                values.append(argument)
        kinds = self._signature.kinds
        passed = list(map(_passed, values, kinds, repeat(self.name)))
        for place in self._written:
            if passed.count(passed[place]) > 1 and values[place].size:
                raise TypeError(f"{self.name} writes an array that it is passed twice")
        result: R = self._native(*passed)
        return result


def compiled(function: Callable[P, R]) -> NativeFunction[P, R]:
    """Decorator: compile `function` on first call."""
    return NativeFunction(function)


def _passed(value: Any, kind: str, name: str) -> Any:
    if kind not in ARRAYS:
        return value
    if value.dtype != ARRAYS[kind] or not value.flags.c_contiguous:
        raise TypeError(f"{name} takes contiguous arrays of {ARRAYS[kind]}, not of {value.dtype}")
    return value.ctypes.data


def translate(function: NativeFunction[..., Any]) -> "Translator":
    """A function as one of an LLVM module of its own.

    Raises:
        TranslationError: the function, or one that it calls, uses what is not in the subset.
    """
    from llvmlite import ir

    return _translate(function, ir.Module(function.name), {})


def _build(
    function: NativeFunction[..., Any],
) -> tuple[FunctionSignature, frozenset[int], Callable[..., Any]]:
    """(signature, places of the arrays that are written, native code) of a function."""
    import llvmlite.binding as llvm

    translator = translate(function)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    content = _object(str(translator.function.module), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    types = {"int": ctypes.c_int64, "float": ctypes.c_double, "none": None}
    kinds: list[Any] = [types.get(kind, ctypes.c_void_p) for kind in translator.signature.kinds]
    address = engine.get_function_address(translator.function.name)
    native = ctypes.CFUNCTYPE(types[translator.signature.result], *kinds)(address)
    native.engine = engine  # type: ignore[attr-defined]  # keeps the code alive
    return translator.signature, frozenset(translator.written), native


def _object(text: str, machine: Any) -> bytes:
    """The object file of an LLVM module, from the cache on disk if it was made before."""
    import llvmlite
    import llvmlite.binding as llvm

    version = f"{llvm.llvm_version_info} {llvmlite.__version__} {machine.triple}"
    key = hashlib.sha256(f"{version} {text}".encode()).hexdigest()
    known = object_cache.load(key)
    if known is not None:
        return known
    parsed = llvm.parse_assembly(text)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    content = bytes(machine.emit_object(parsed))
    object_cache.store(key, content)
    return content


def _translate(
    function: NativeFunction[..., Any], module: Any, known: "dict[Any, Translator | None]"
) -> "Translator":
    """Add a function to an LLVM module, its helpers first; `known` are those already there."""
    from tilesmith.codegen.compiled.translator import Translator

    source = FunctionSource.of(function.function)
    known[function] = None
    helpers = {}
    for name, helper in function.helpers.items():
        if helper not in known:
            known[helper] = translated = _translate(helper, module, known)
            translated.function.linkage = "internal"
            translated.function.attributes.add("alwaysinline")
        if known[helper] is None:
            raise source.refusal(source.tree, f"it calls itself, by way of '{name}'")
        helpers[name] = known[helper]
    number = f"{function.name}.{len(known)}"
    return Translator(source, module, number, function.function.__globals__, helpers)

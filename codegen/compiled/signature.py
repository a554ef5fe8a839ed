"""What a compiled function takes and gives: numbers, arrays, and tables of both.

    class Costs(NamedTuple):        # or a frozen dataclass
        semaphore: float
        issue: Floats

    @compiled
    def latest(n: int, costs: Costs) -> float: ...

A table stands for its fields: native code takes them one by one, in order, so a table costs what
its fields would. Fields of other types are not seen. Invariant: tables are frozen, only elements of
their arrays change.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.errors import TranslationError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

KINDS = {"int": "int", "float": "float", "Ints": "ints", "Floats": "floats", "Singles": "singles"}
"""Annotation of a parameter or field: its kind."""

ARRAYS = {
    "ints": np.dtype(np.int64), "floats": np.dtype(np.float64), "singles": np.dtype(np.float32),
}  # fmt: skip

RESULTS = {"int": "int", "float": "float", "None": "none"}


@dataclass(frozen=True)
class FunctionSource:
    """A function's syntax, and where it stands."""

    tree: ast.FunctionDef
    file: str
    line: int

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "FunctionSource":
        code = function.__code__
        try:
            text = textwrap.dedent(inspect.getsource(function))
        except OSError as error:
            raise TranslationError(
                f"compiled function '{code.co_name}' has no source to translate; write it in a file"
            ) from error
        (tree,) = ast.parse(text).body
        assert isinstance(tree, ast.FunctionDef)
        return cls(tree, code.co_filename, code.co_firstlineno)

    def refusal(self, node: ast.AST, what: str) -> TranslationError:
        """The error that says what at `node` cannot be translated."""
        line = self.line + getattr(node, "lineno", 1) - 1
        return TranslationError(
            f"compiled function '{self.tree.name}' ({self.file}:{line}): {what}; "
            "see tilesmith/codegen/compiled/function.py for what compiled loops may contain"
        )


@dataclass(frozen=True)
class FunctionParameter:
    """A parameter: `kind` of a number or array, or the fields (name, kind) of a table."""

    name: str
    kind: str = ""
    table: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """(name of the field, kind) of each number and array it stands for."""
        return self.table or (("", self.kind),)


@dataclass(frozen=True)
class FunctionSignature:
    """Parameters in order, and the kind of the result."""

    parameters: tuple[FunctionParameter, ...]
    result: str

    @property
    def kinds(self) -> list[str]:
        """Kinds of all numbers and arrays, tables taken apart."""
        return [kind for parameter in self.parameters for _, kind in parameter.parts]

    @classmethod
    def of(
        cls,
        source: FunctionSource,
        names: dict[str, Any],
        kinds: Mapping[str, str] = KINDS,
        results: Mapping[str, str] = RESULTS,
    ) -> "FunctionSignature":
        """The signature of a function whose annotations mean what `names` says, or are among
        `kinds` and `results`."""
        given = source.tree.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults:
            raise source.refusal(source.tree, "parameters are positional and without defaults")
        expected = f"{', '.join(list(results)[:-1])} or {list(results)[-1]}"
        if source.tree.returns is None:
            raise source.refusal(source.tree, f"the result needs an annotation: {expected}")
        result = ast.unparse(source.tree.returns)
        if result not in results:
            raise source.refusal(source.tree, f"a result of type {result}; {expected} is expected")
        every = (*given.posonlyargs, *given.args)
        parameters = [_parameter(source, node, names, kinds) for node in every]
        return cls(tuple(parameters), results[result])


def _parameter(
    source: FunctionSource, node: ast.arg, names: dict[str, Any], kinds: Mapping[str, str]
) -> FunctionParameter:
    if node.annotation is None:
        raise source.refusal(node, f"parameter '{node.arg}' needs an annotation")
    text = ast.unparse(node.annotation)
    if text in kinds:
        return FunctionParameter(node.arg, kinds[text])
    table = _fields(names.get(text))
    if not table:
        raise source.refusal(
            node,
            f"parameter '{node.arg}' is of type {text}; {', '.join(kinds)}, or a frozen dataclass "
            "or NamedTuple of such is expected",
        )
    return FunctionParameter(node.arg, table=table)


def _fields(table: Any) -> tuple[tuple[str, str], ...]:
    """(name, kind) of the numbers and arrays in a class of tables; none for any other class."""
    if not isinstance(table, type):
        return ()
    if is_dataclass(table) and table.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        types = {field.name: field.type for field in fields(table)}
    elif issubclass(table, tuple):
        types = dict(table.__annotations__)
    else:
        return ()
    return tuple((name, _kind(kind)) for name, kind in types.items() if _kind(kind))


def _kind(annotation: Any) -> str:
    """The kind of a field, "" for one that is not seen."""
    known = {int: "int", float: "float", Ints: "ints", Floats: "floats", Singles: "singles"}
    text = getattr(annotation, "__forward_arg__", annotation)  # NamedTuple keeps a ForwardRef
    return KINDS.get(text, "") if isinstance(text, str) else known.get(annotation, "")

"""Functions of JAX as models: traced for example arguments, arrays they hold as constants; and
compiled ones, called as the functions were.

Constants are taken out of the trace before it becomes StableHLO, and shared with JAX's own arrays.
What goes in and out of a function are trees of arrays; a graph has them in the order of their
leaves.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.importer import check_shapes
from tilesmith.capabilities.stablehlo.translator import Translation
from tilesmith.compiler.driver.front_end import FrontEndModel
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.graph.value_types import own
from tilesmith.compiler.runtime.executable import Executable, own_aligned
from tilesmith.search_space.hardware.target import HOST
from tilesmith.search_space.support.errors import ModelError


class JaxModel(FrontEndModel):
    """A traced function.

    Attributes:
        name: the function's.
        inputs: names of the leaves of its arguments, in order: "x", "params['w']".
        arguments: the tree of its arguments.
        results: the tree of what it gives.
        dtypes: of the leaves, as JAX takes them.
        given: dtypes of what it gives.
    """

    def __init__(self, function: Callable[..., Any], examples: Sequence[Any]) -> None:
        self.name = getattr(function, "__name__", "") or type(function).__name__
        if not callable(function):
            raise ModelError(f"'{self.name}' is not a function; give one, and examples after it")
        leaves, self.arguments = jax.tree_util.tree_flatten_with_path(tuple(examples))
        self.inputs = [_input_name(function, path) for path, _ in leaves]
        values = [value for _, value in leaves]
        try:
            self._constants, self._module, shapes = _traced(function, examples, values)
        except Exception as error:  # whatever JAX, or the function, raises
            raise ModelError(
                f"'{self.name}' cannot be traced for these arguments: {_first_line(error)}"
            ) from error
        self.results = jax.tree_util.tree_structure(shapes)
        named = jax.tree_util.tree_flatten_with_path(shapes)[0]
        self._outputs = [f"result{keystr(path)}" for path, _ in named]
        self.given = [_dtype(leaf) for leaf in jax.tree_util.tree_leaves(shapes)]
        self.dtypes = [jax.dtypes.canonicalize_dtype(_dtype(value)) for value in values]

    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        constants = [array_of(constant) for constant in self._constants]
        graph = Translation(self._module, self.name).graph(self.inputs, constants, self._outputs)
        check_shapes(graph, shapes)
        return graph


def _traced(
    function: Callable[..., Any], examples: Sequence[Any], leaves: Sequence[Any]
) -> tuple[Sequence[Any], Any, Any]:
    """Constants of a function, its module with those as first arguments, the tree of results."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)

    def whole(constants: Sequence[Any], values: Sequence[Any]) -> Any:
        return jax.core.eval_jaxpr(closed.jaxpr, constants, *values)

    traced = jax.jit(whole, keep_unused=True).trace(list(closed.consts), list(leaves))
    lowered = traced.lower(lowering_platforms=(HOST,))
    return closed.consts, lowered.compiler_ir("stablehlo"), shapes


def _dtype(value: Any) -> Any:
    if _is_key(value):
        return np.dtype(np.uint32)
    return np.result_type(value) if not hasattr(value, "dtype") else value.dtype


def _is_key(value: Any) -> bool:
    return bool(jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key))


def _input_name(function: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """The function's own name of an argument, and where in it the leaf is."""
    number = path[0].idx
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    name = plain[number] if number < len(plain) else f"input{number}"
    return f"{name}{keystr(path[1:])}"


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:300]


def array_of(value: Any) -> NDArray[Any]:
    """An array over the memory of one of JAX's on the CPU; else a copy."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)  # by the buffer: a third of what DLPack takes


BY_DLPACK = tuple(
    np.dtype(name)
    for name in ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8",
                 "uint16", "uint32", "uint64", "complex64", "complex128")
)  # fmt: skip
"""What JAX takes of numpy's by DLPack."""

_SMALL = 1 << 16
"""Bytes of results that JAX copies in less time than it takes an array by DLPack."""


# -- compiled functions ----------------------------------------------------------------------------
class CompiledFunction:
    """A compiled function, called as the function was.

    What JAX can take as it lies in memory is not copied: arrays come out by DLPack or the buffer
    protocol.

    Attributes:
        model: the function as traced.
        executable: what runs it.
    """

    def __init__(self, model: JaxModel, executable: Executable) -> None:
        self.model, self.executable = model, executable
        infos = executable.outputs
        self._is_small = (
            jax.default_backend() == HOST  # the same word in JAX
            and all(info.known for info in infos)
            and sum(info.nbytes for info in infos) <= _SMALL
            and all(jax.dtypes.canonicalize_dtype(dtype) == dtype for dtype in model.given)
        )

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives: a tree of JAX's arrays.

        Raises:
            ModelError: a tree of another form than the examples', or arrays of other shapes.
            JobError: as `Executable.run`.
        """
        leaves, tree = jax.tree_util.tree_flatten(tuple(arguments))
        if tree != self.model.arguments:
            raise ModelError(
                f"'{self.model.name}' was traced for {self.model.arguments} and is called with "
                f"{tree}; trace it again for that"
            )
        given = {
            name: _parted(_fitting(leaf, dtype))
            for name, leaf, dtype in zip(self.model.inputs, leaves, self.model.dtypes, strict=True)
        }
        outputs = self.executable.run(given, own if self._is_small else own_aligned)
        arrays = [
            _joined(array, dtype)
            for array, dtype in zip(outputs.values(), self.model.given, strict=True)
        ]
        results = _as_they_are(*arrays) if self._is_small else map(_shared, arrays)
        return jax.tree_util.tree_unflatten(self.model.results, results)


@jax.jit  # type: ignore[untyped-decorator]
def _as_they_are(*arrays: Any) -> tuple[Any, ...]:
    """Arrays of numpy's as JAX's: what calls compiled functions takes them without Python."""
    return arrays


def _parted(array: NDArray[Any]) -> NDArray[Any]:
    """Complex numbers as real ones, [..., 2], over the same memory."""
    if array.dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).reshape(array.shape)[..., None].view(array.real.dtype)


def _joined(array: NDArray[Any], dtype: np.dtype) -> NDArray[Any]:
    """What `_parted` was given, where that was complex."""
    if dtype.kind != "c":
        return array
    return np.ascontiguousarray(array).view(dtype)[..., 0]


def _shared(array: NDArray[Any]) -> jax.Array:
    """One of JAX's arrays over the memory; a copy of an element type that DLPack does not carry."""
    if array.dtype in BY_DLPACK and array.size:
        return jax.dlpack.from_dlpack(array)
    return jax.numpy.asarray(array)


def _fitting(leaf: Any, dtype: Any) -> NDArray[Any]:
    """The leaf as JAX takes it: numbers of Python and of 64 bits as it takes those."""
    array = array_of(leaf)
    narrowed = jax.dtypes.canonicalize_dtype(array.dtype) == dtype
    if array.dtype != dtype and (narrowed or not hasattr(leaf, "dtype")):
        return np.asarray(array, dtype=dtype)
    return array

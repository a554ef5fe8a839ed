"""The trace of a kernel: every instruction it asked for, in order, with the line it stands in.

While a kernel's function runs, its calls append steps; what they work on are views. Nothing is
placed in memory yet: that is lowering's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.nki.notation.dtypes import DType
from tilesmith.families.trainium.nki.notation.errors import NkiError, author_line
from tilesmith.families.trainium.nki.notation.indices import NkiRange

OUT = ("out", "sums", "reduced", "maxima")
"""Operands that an instruction writes."""


@dataclass(eq=False)
class TracedStep:
    """An instruction by the builder's method for it, its operands by name, and its line.

    Attributes:
        implicit: an assignment wrote it, not the kernel's author: it is left out where what it
            copies can be written to its place at once.
        overlaps: it stands in an `affine_range`, whose iterations are worked on side by side.
    """

    method: str
    operands: dict[str, Any]
    line: str
    implicit: bool = False
    overlaps: bool = False


@dataclass(eq=False)
class Trace:
    """What a kernel did so far.

    Attributes:
        functions: those of the language, by name: operators of views call them.
        array: what declares an array.
        programs: extents of the grid of instances; program: which of them runs.
    """

    core: Core
    functions: dict[str, Callable[..., Any]]
    array: Callable[..., Any]
    steps: list[TracedStep] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    programs: tuple[int, ...] = ()
    program: tuple[int, ...] = ()
    spreads: dict[int, dict[Any, Any]] = field(default_factory=dict)
    _ones: dict[tuple[int, str], Any] = field(default_factory=dict)

    def ones(self, count: int, dtype: DType) -> Any:
        """A row of ones, which a product spreads a row with."""
        key = (count, str(dtype))
        if key not in self._ones:
            self._ones[key] = self.tile((1, count), dtype)
            self.emit("memset", out=self._ones[key], value=1.0)
        return self._ones[key]

    def function(self, name: str) -> Callable[..., Any]:
        return self.functions[name]

    def emit(self, method: str, implicit: bool = False, **operands: Any) -> None:
        """Append an instruction.

        Raises:
            NkiError: an operand leaves its array, and no mask cuts off what is outside.
        """
        for value in operands.values():
            if getattr(value, "limits", ()):
                index, count = value.limits[0]
                raise NkiError(
                    f"{value!r} reaches element {index.highest} of an axis of {count}; a mask or "
                    "fewer elements keep it inside"
                )
        for name in OUT:
            if self.spreads and name in operands:
                self.spreads.pop(id(operands[name].array), None)
        overlaps = NkiRange.overlapping > 0
        self.steps.append(TracedStep(method, operands, author_line(), implicit, overlaps))

    def share(self, start: int, same: dict[int, Any]) -> None:
        """Have the steps from number `start` on use other arrays in place of theirs."""
        for step in self.steps[start:]:
            for value in step.operands.values():
                array = getattr(value, "array", None)
                if id(array) in same:
                    value.array = same[id(array)]
        self.arrays = [array for array in self.arrays if id(array) not in same]

    def move(self, out: Any, source: Any) -> None:
        """DMA between memories: HBM and SBUF, or within either by way of the other."""
        spaces = (source.array.space, out.array.space)
        if spaces == ("hbm", "hbm"):
            raise NkiError("HBM is copied by way of a tile in SBUF: load it, then store it")
        if spaces[0] == "hbm":
            self.emit("load", out=out, source=source)
        elif spaces[1] == "hbm":
            self.emit("store", out=out, source=self.in_sbuf(source))
        else:
            self.emit("copy", out=out, a=source)

    def in_sbuf(self, view: Any) -> Any:
        """A tile that DMA reaches."""
        if view.array.space != "psum":
            return view
        copy = self.tile(view.shape, view.dtype)
        self.emit("copy", out=copy, a=view, engine="scalar")
        return copy

    def tile(self, shape: tuple[int, ...], dtype: DType, space: str = "sbuf") -> Any:
        """A tile for what a call returns."""
        if len(shape) == 0:
            shape = (1,)
        return self.declare(self.array(self, "", shape, dtype, space))

    def declare(self, array: Any) -> Any:
        """Make an array part of the kernel.

        Raises:
            NkiError: it has more partitions than its memory.
        """
        core = self.core
        if array.space != "hbm":
            there = core.psum_partitions if array.space == "psum" else core.sbuf_partitions
            count = array.shape[array.partition]
            if not 1 <= count <= there:
                raise NkiError(
                    f"a tile {array.shape} has {count} partitions; {array.space.upper()} has "
                    f"{there}, and a tile's first axis, or the one of nl.par_dim, is its partitions"
                )
        if not array.name or array.name in self.names:
            array.name = f"{array.name or 'tile'}.{len(self.arrays)}"
        self.names.add(array.name)
        self.arrays.append(array)
        return array.view()


_traces: list[Trace] = []


def current() -> Trace:
    """The trace of the kernel that runs.

    Raises:
        NkiError: none does.
    """
    if not _traces:
        raise NkiError("functions of NKI work inside of a kernel, a function with @nki.jit")
    return _traces[-1]


class Tracing:
    """`with Tracing(trace):` the kernel that runs appends to it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __enter__(self) -> Trace:
        _traces.append(self._trace)
        return self._trace

    def __exit__(self, *_: object) -> None:
        _traces.pop()


def of_number(value: Any) -> bool:
    """Whether a value is a plain number."""
    return isinstance(value, (int, float)) or hasattr(value, "__float__")

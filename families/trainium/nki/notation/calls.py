"""How a function of NKI is declared and called: its name, its parameters, what it appends.

    @INSTRUCTIONS.add("data1 data2 op dtype=None")
    def tensor_tensor(call): ...

In NKI 0.3 and later (`nki.isa`) an instruction takes its result first, `dst`; before
(`neuronxcc.nki.isa`) it returns it. One declaration is both. Invariant: what a kernel calls wrongly
is an error that names its line, the function, and what it takes.
"""

# mypy: disable-error-code="no-any-return"

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from typing import Any, NoReturn, TypeVar

from tilesmith.families.trainium.nki.notation.dtypes import DType, dtype_of
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.indices import AffineMask
from tilesmith.families.trainium.nki.notation.tensors import HBM, PARTITION, TensorView
from tilesmith.families.trainium.nki.notation.tracing import Trace, current

COMMON = "mask=None dtype=None engine=None name=None lnc_size=None"
"""Parameters that every function has."""

Body = Callable[["NkiCall"], Any]
Declared = TypeVar("Declared", bound=Callable[..., Any])


class NkiCall:
    """One call of a function: its arguments by name as attributes, and what it appends."""

    def __init__(self, function: str, given: dict[str, Any]) -> None:
        self.function, self.given = function, given
        self.trace: Trace = current()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.given[name]
        except KeyError:
            raise AttributeError(name) from None

    def tile(self, name: str) -> TensorView:
        """An operand that is a tile in SBUF or PSUM.

        Raises:
            NkiError: it is none.
        """
        value = self.given[name]
        if not isinstance(value, TensorView):
            raise NkiError(f"{self.function}: '{name}' is a tile, not a {type(value).__name__}")
        if value.array.space == HBM:
            raise NkiError(
                f"{self.function}: '{name}' is {value!r}; it is loaded into SBUF before it is used"
            )
        return value

    def out(
        self, shape: tuple[int, ...], dtype: DType, space: str = "sbuf", fixed: bool = False
    ) -> Any:
        """Where the result goes: `dst` where the call has one, else a new tile.

        Args:
            dtype: unless the call says another; `fixed`: whatever it says.
        """
        dst = self.given.get("dst")
        if dst is not None:
            return self.tile("dst")
        if self.given.get("dtype") is not None and not fixed:
            dtype = dtype_of(self.given["dtype"])
        return self.trace.tile(shape, dtype, space)

    @property
    def nowhere(self) -> bool:
        """Whether its mask is false everywhere."""
        mask = self.given.get("mask")
        return not (mask is None or isinstance(mask, AffineMask) or mask)

    def engine_of(self, default: str) -> str:
        """The engine that was asked for, or the one that takes such instructions."""
        asked = self.given.get("engine")
        return str(asked) if asked in ("vector", "scalar", "gpsimd", "tensor") else default

    def emit(self, method: str, out: TensorView, **operands: Any) -> TensorView:
        """Append an instruction where its mask holds, and return the whole result."""
        mask = self.given.get("mask")
        whole = out
        if isinstance(mask, AffineMask):
            box = mask.box(out.shape)
            if box is None:
                return whole
            out.array.masked = True
            out = out.cut(box)
            operands = {
                name: value.cut(box if value.ndim >= len(box) else box[: value.ndim])
                if isinstance(value, TensorView)
                else value
                for name, value in operands.items()
            }
        elif self.nowhere:
            whole.array.masked = True
            return whole
        self.trace.emit(method, out=out, **operands)
        return whole


@dataclass(frozen=True)
class NkiFunction:
    """A function of NKI as kernels call it."""

    name: str
    signature: inspect.Signature
    body: Body

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What parameters are unless they are given; those that have to be are empty."""
        return {name: one.default for name, one in self.signature.parameters.items()}

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = {**self.defaults, **options}
        given.update(zip(self.defaults, args, strict=False))
        twice = any(name in options for name in islice(self.defaults, len(args)))
        lacks = any(value is inspect.Parameter.empty for value in given.values())
        if lacks or twice or max(len(given), len(args)) > len(self.defaults):
            self._refuse(args, options)
        return self.body(NkiCall(self.name, given))

    def _refuse(self, args: tuple[Any, ...], options: dict[str, Any]) -> NoReturn:
        """Say what is wrong with arguments."""
        try:
            self.signature.bind(*args, **options)
        except TypeError as error:
            names = [n for n in self.signature.parameters if n not in COMMON]
            raise NkiError(f"{self.name}: {error}; it takes {', '.join(names)}") from None
        raise AssertionError("a signature takes what its parameters do not")


def _signature(text: str, dst: str) -> inspect.Signature:
    """Parameters from "data bias=None"; all may be given by place or by name."""
    common = [word for word in COMMON.split() if word.partition("=")[0] not in _names(text)]
    parameters = []
    for word in [*dst.split(), *text.split(), *common]:
        name, equals, default = word.partition("=")
        value = eval(default, {"__builtins__": {}}) if equals else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=value))
    return inspect.Signature(parameters)


def _names(text: str) -> Iterable[str]:
    return {word.partition("=")[0] for word in text.split()}


@dataclass(frozen=True)
class NkiFunctions:
    """The functions of one of NKI's modules, by name."""

    module: str
    declared: dict[str, tuple[str, str | None, Body]] = field(default_factory=dict)

    def add(
        self, parameters: str, new: str | None = None, name: str = ""
    ) -> Callable[[Declared], Declared]:
        """Declare a function; `new`: its parameters beside `dst` in 0.3 and later, if others."""

        def declare(body: Declared) -> Declared:
            self.declared[name or body.__name__] = (parameters, new, body)
            return body

        return declare

    def functions(self, with_dst: bool) -> dict[str, NkiFunction]:
        """All of them, in the older form or with `dst`."""
        functions = {}
        for name, (parameters, new, body) in self.declared.items():
            operands = [word for word in parameters.split() if "=" not in word]
            dst = "dst" if with_dst and operands and "dst" not in operands else ""
            words = new if with_dst and new is not None else parameters
            signature = _signature(words, dst)
            functions[name] = NkiFunction(f"{self.module}.{name}", signature, body)
        return functions


def unknown(module: str, name: str, known: Iterable[str]) -> NkiError:
    """The error of a name that a module of NKI's has not here."""
    names = sorted(n for n in known if not n.startswith("_"))
    near = get_close_matches(name, names, 3)
    meant = f" (near it: {', '.join(near)})" if near else ""
    return NkiError(f"{module}.{name} is not known here{meant}; {module} has {', '.join(names)}")


def scalar_of(view: TensorView) -> bool:
    """Whether a tile is one element a partition."""
    return all(axis.count == 1 for axis in view.axes if axis.kind != PARTITION)

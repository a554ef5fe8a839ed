"""What is kept of a compiled kernel: its chains, not yet placed, as bytes.

Chains are placed when a model is linked, those of all kernels together: a kernel's own schedule
would be worth nothing there. Format: zlib over a JSON header, a line end, and the numbers of all
arrays one after another; equal arrays are kept once. Invariant: what is read equals what was
written.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.dataflow import Dataflow
from tilesmith.families.lpu.codegen.selection.from_program import Selection
from tilesmith.families.lpu.codegen.selection.layout.accesses import shape_of
from tilesmith.search_space.support.errors import ModelError

# What kernels on disk call the parts of a dataflow; the classes may have other names.
_KNOWN = {
    "Tensor": dataflow.VectorTensor, "Rows": dataflow.Rows, "Value": dataflow.ChainValue,
    "Read": dataflow.Read, "Gather": dataflow.Gather, "Product": dataflow.Product,
    "Operation": dataflow.Operation, "Compute": dataflow.Compute, "Shuffle": dataflow.Shuffle,
    "Transpose": dataflow.Transpose, "Write": dataflow.Write, "Send": dataflow.Send,
    "Receive": dataflow.Receive, "Chain": dataflow.Chain,
}  # fmt: skip
_TEXTS = {kind: text for text, kind in _KNOWN.items()}


@dataclass(frozen=True)
class KernelParameter:
    """An operand or the result: its tensor has its name; `shape` is physical."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class ChainKernelCode:
    """A compiled kernel.

    Attributes:
        flow: its tensors and chains.
        literals: contents of constant tensors that are no parameters, (rows, 320).
        parameters: in the order of the program, the result last.
    """

    flow: Dataflow
    literals: Mapping[str, NDArray[Any]]
    parameters: tuple[KernelParameter, ...]

    @classmethod
    def of(cls, selected: Selection) -> "ChainKernelCode":
        """What selection made of a program."""
        parameters = (KernelParameter(b.name, shape_of(b), b.dtype) for b in selected.operands)
        return cls(selected.dataflow, selected.literals, tuple(parameters))

    def touched(self) -> frozenset[str]:
        """Names of the tensors that some chain reads or writes."""
        tensors: set[str] = set()
        for chain in self.flow.chains:
            for step in chain.steps:
                match step:
                    case dataflow.Read(rows, frame):
                        tensors |= {rows.tensor, frame}
                    case dataflow.Write(rows=rows):
                        tensors.add(rows.tensor)
                    case dataflow.Product(weights=weights):
                        tensors.add(weights.tensor)
                    case dataflow.Gather(table=table):
                        tensors.add(table)
                    case _:
                        pass
        return frozenset(tensors)

    def numbers(self) -> frozenset[str]:
        """Names of constants whose rows are numbers in operations (`dataflow.Operation.known`)."""
        return frozenset(
            operation.known[0]
            for chain in self.flow.chains
            for step in chain.steps
            if isinstance(step, dataflow.Compute)
            for operation in step.operations
            if operation.known is not None
        )

    def to_bytes(self) -> bytes:
        """See the module's docstring."""
        pool = _Pool()
        header = {
            "name": self.flow.name,
            "tensors": [pool.plain(tensor) for tensor in self.flow.tensors.values()],
            "chains": [pool.plain(chain) for chain in self.flow.chains],
            "literals": {name: pool.plain(rows) for name, rows in self.literals.items()},
            "parameters": [[p.name, p.shape, p.dtype] for p in self.parameters],
        }
        text = json.dumps({**header, "arrays": pool.kinds}, separators=(",", ":"))
        return zlib.compress(b"\n".join((text.encode(), b"".join(pool.parts))), 1)

    @classmethod
    def from_bytes(cls, code: bytes) -> "ChainKernelCode":
        """Read what `to_bytes` wrote.

        Raises:
            ModelError: it is something else.
        """
        try:
            text, _, numbers = zlib.decompress(code).partition(b"\n")
            header = json.loads(text)
            arrays = _arrays(header["arrays"], numbers)
            tensors = [_object(tensor, arrays) for tensor in header["tensors"]]
            chains = tuple(_object(chain, arrays) for chain in header["chains"])
            flow = Dataflow(header["name"], {t.name: t for t in tensors}, chains)
            literals = {n: _object(rows, arrays) for n, rows in header["literals"].items()}
            parameters = (KernelParameter(n, tuple(s), d) for n, s, d in header["parameters"])
            return cls(flow, literals, tuple(parameters))
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"a kernel's chains cannot be read ({error}); compile again") from None


class _Pool:
    """Arrays by number, and objects that name them so."""

    def __init__(self) -> None:
        self.kinds: list[tuple[str, tuple[int, ...]]] = []
        self.parts: list[bytes] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def plain(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"#": self._number(value)}
        if is_dataclass(value):
            parts = {f.name: self.plain(getattr(value, f.name)) for f in fields(value)}
            return {"_": _TEXTS[type(value)], **parts}
        if isinstance(value, tuple):
            return [self.plain(part) for part in value]
        return value

    def _number(self, array: NDArray[Any]) -> int:
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self._known:
            self._known[key] = len(self.kinds)
            self.kinds.append(key[:2])
            self.parts.append(key[2])
        return self._known[key]


def _arrays(kinds: list[Any], numbers: bytes) -> list[NDArray[Any]]:
    arrays, offset = [], 0
    for name, shape in kinds:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(numbers, np.dtype(name), count, offset).reshape(shape))
        offset += arrays[-1].nbytes
    return arrays


def _object(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return tuple(_object(part, arrays) for part in value)
    if not isinstance(value, dict):
        return value
    if "#" in value:
        return arrays[value["#"]]
    parts = {name: _object(part, arrays) for name, part in value.items() if name != "_"}
    return _KNOWN[value["_"]](**parts)

"""ONNX's Loop and Scan on the host, for `onnx.reference`, whose own are wrong or not whole.

Its Loop stacks scan outputs along an existing axis instead of a new first one, never enters a loop
whose condition is left out, and joins what states come to by name, not by place, if no iteration is
run. Its Scan knows neither axes, nor directions, nor the batches of opset 8, nor scans of nothing.
Invariants: a body sees the tensors around it; its own names hide them; what is stacked of no
iteration has the type that the body declares.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.reference.op_run import OpRun

from tilesmith.codegen.host.memory import machine_bytes
from tilesmith.search_space.support.errors import JobError


def check_room(loop: onnx.NodeProto, values: Mapping[str, Any]) -> None:
    """Refuse a counted loop whose stacked rows this machine has no memory for, before it starts.

    Args:
        loop: a Loop; one that its condition may end is not looked at.
        values: what it reads, by name; of rows whose shape nobody knows one element is counted.

    Raises:
        JobError: there is less memory.
    """
    (trips, going), body = (*loop.input, "", "")[:2], loop.attribute[0].g
    rows = body.output[1 + max(0, len(loop.input) - 2) :]
    if not trips or not rows or not _is_counted(body):
        return
    if going and not np.asarray(values[going]).all():
        return
    count = int(np.asarray(values[trips]).reshape(-1)[0])
    nbytes = count * sum(map(_row_bytes, rows))
    most = machine_bytes()
    if nbytes > most:
        raise JobError(
            f"Loop '{loop.name or loop.output[0]}' stacks {count} rows, {nbytes / 2**30:.4g} "
            f"GiB at least; this machine has {most / 2**30:.4g} GiB, so let it count less"
        )


def _is_counted(body: onnx.GraphProto) -> bool:
    """Whether a loop goes on as long as it is counted: its body hands its condition on."""
    copied = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity"}
    condition = body.output[0].name
    while condition in copied:
        condition = copied[condition]
    return bool(condition == body.input[1].name)


def _row_bytes(row: onnx.ValueInfoProto) -> int:
    kind = row.type.tensor_type
    known = kind.elem_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    size = int(helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize) if known else 1
    return size * math.prod(
        int(d.dim_value) if d.HasField("dim_value") else 1 for d in kind.shape.dim
    )


class _WithBody(OpRun):
    """What Loop and Scan share."""

    op_domain = ""
    body: Any
    """The subgraph, ready to be run."""
    run_params: dict[str, Any]
    _run_body: Callable[..., list[Any]]

    def need_context(self) -> bool:
        """The body may read any tensor around it."""
        return True

    def _nothing(self, output: int) -> NDArray[Any]:
        """What the body's output `output` comes to, stacked, if the body is never run."""
        declared = self.body.output_types[output].tensor_type
        dtype = np.dtype(np.float32)
        if declared.elem_type != onnx.TensorProto.UNDEFINED:
            dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
        return np.empty((0, *(dim.dim_value for dim in declared.shape.dim)), dtype)


class HostLoop(_WithBody):
    """The last states, then what the body gave besides in each iteration, stacked.

    for i in range(trips) while condition:
        condition, *states, *rows = body(i, condition, *states)
    """

    def _run(
        self,
        trips: Any,
        condition: Any,
        *states: Any,
        context: Mapping[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        names, values = self.body.input_names, list(states)
        first = 1 + len(values)
        rows: list[list[Any]] = [[] for _ in self.body.output_names[first:]]
        going = True if condition is None else bool(condition)
        step = 0
        while going and (trips is None or step < int(trips)):
            given = [np.array(step, np.int64), np.array(going), *values]
            around = {**(context or {}), **dict(zip(names, given, strict=False))}
            outputs = self._run_body(around, attributes=attributes, bindings=bindings)
            going, values = bool(outputs[0]), list(outputs[1:first])
            for row, value in zip(rows, outputs[first:], strict=True):
                row.append(value)
            step += 1
        stacked = [np.stack(r) if r else self._nothing(first + i) for i, r in enumerate(rows)]
        return (*values, *stacked)


class Scan(_WithBody):
    """The last states, then what the body gave besides for each slice of the scanned, stacked.

    for slices in zip(*scanned):
        *states, *rows = body(*states, *slices)

    Opset 8 does so for every element of a batch, the first axis of all, and may be told how long
    each one's sequence is; outputs are zero behind its end.
    """

    def _run(
        self,
        *arguments: Any,
        context: Mapping[str, Any] | None = None,
        attributes: Any = None,
        bindings: Any = None,
        **stated: Any,
    ) -> tuple[Any, ...]:
        def body(given: Sequence[Any]) -> list[Any]:
            around = {**(context or {}), **dict(zip(self.body.input_names, given, strict=False))}
            return self._run_body(around, attributes=attributes, bindings=bindings)

        scanned = int(stated["num_scan_inputs"])
        if self.run_params["opsets"].get("", 1) > 8:
            states, rows = self._scan(body, arguments, scanned, stated)
            return (*states, *rows)
        lengths, *given = arguments
        longest = given[-1].shape[1]
        counts = [longest] * len(given[0]) if lengths is None else lengths
        scans = []
        for entry, count in enumerate(counts):
            states = [value[entry] for value in given[:-scanned]]
            slices = [value[entry, :count] for value in given[-scanned:]]
            flipped = {"scan_input_directions": stated.get("directions")}
            states, rows = self._scan(body, (*states, *slices), scanned, flipped)
            scans.append((*states, *(_longer(row, longest) for row in rows)))
        return tuple(np.stack(values) for values in zip(*scans, strict=True))

    def _scan(
        self,
        body: Callable[[Sequence[Any]], list[Any]],
        arguments: Sequence[Any],
        scanned: int,
        stated: Mapping[str, Any],
    ) -> tuple[list[Any], list[Any]]:
        """States and stacked rows of one scan."""
        states = list(arguments[:-scanned])
        held = len(states)
        moved = [
            _turned(np.moveaxis(np.asarray(value), axis, 0), backwards)
            for value, axis, backwards in zip(
                arguments[-scanned:],
                _each(stated.get("scan_input_axes"), scanned),
                _each(stated.get("scan_input_directions"), scanned),
                strict=True,
            )
        ]
        if len({len(value) for value in moved}) != 1:
            lengths = ", ".join(str(len(value)) for value in moved)
            raise ValueError(f"the scanned inputs are not of one length, but of {lengths}")
        results: list[list[Any]] = [[] for _ in self.body.output_names[held:]]
        for slices in zip(*moved, strict=True):
            outputs = body([*states, *slices])
            states = list(outputs[:held])
            for row, value in zip(results, outputs[held:], strict=True):
                row.append(value)
        rows = [np.stack(r) if r else self._nothing(held + i) for i, r in enumerate(results)]
        axes = _each(stated.get("scan_output_axes"), len(rows))
        directions = _each(stated.get("scan_output_directions"), len(rows))
        return states, [
            np.moveaxis(_turned(row, backwards), 0, axis)
            for row, axis, backwards in zip(rows, axes, directions, strict=True)
        ]


def _each(values: Sequence[int] | None, count: int) -> Sequence[int]:
    """An attribute with a number for each input or output; all zero where it is left out."""
    return values or [0] * count


def _turned(value: NDArray[Any], backwards: int) -> NDArray[Any]:
    return value[::-1] if backwards else value


def _longer(row: NDArray[Any], length: int) -> NDArray[Any]:
    """Zeros put behind rows of a sequence that ended early."""
    return np.pad(row, [(0, length - len(row)), *[(0, 0)] * (row.ndim - 1)])

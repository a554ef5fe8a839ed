"""What chains mean, before anything is placed: one after the other, step by step, in numpy.

Units compute what `arithmetic` says, as in a schedule, so that values agree bit by bit with those
of a schedule that is right. Invariant: knows nothing of cycles, slices and streams.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.simulator.execution.arithmetic import (
    computed,
    multiplied,
    shuffled,
    transposed,
)
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError

Arrays = NDArray[Any]
Values = dict[dataflow.ChainValue, Arrays]
Told = Callable[[dataflow.Chain, Values, "Tensors"], None]


@dataclass
class Tensors:
    """What tensors hold, (rows, 320) by name."""

    known: Mapping[str, dataflow.VectorTensor]
    contents: Mapping[str, Arrays]
    held: dict[str, Arrays] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Arrays:
        if name not in self.held:
            tensor = self.known[name]
            given = self.contents.get(name)
            kind = to_numpy(tensor.dtype)
            empty = np.zeros((tensor.rows, dataflow.LANES), kind)
            self.held[name] = empty if given is None else np.array(given, kind)
        return self.held[name]

    def copy(self) -> "Tensors":
        """The same by itself."""
        return Tensors(self.known, self.contents, {n: np.array(a) for n, a in self.held.items()})


def run_chains(flow: dataflow.Dataflow, contents: Mapping[str, Arrays], observe: Told) -> Tensors:
    """All chains in program order; `observe` after each, of what flowed in it.

    Raises:
        JobError: a chain that sends to other chips.
    """
    tensors = Tensors(flow.tensors, contents)
    for chain in flow.chains:
        observe(chain, run_chain(chain, tensors), tensors)
    return tensors


def run_chain(chain: dataflow.Chain, tensors: Tensors) -> Values:
    """One chain: what flows out of its steps; its writes are done."""
    values: Values = {}
    for number, step in enumerate(chain.steps):
        match step:
            case dataflow.Read(rows, frame):
                values[dataflow.ChainValue(number)] = _rows(
                    tensors, rows.tensor, rows.numbers, frame
                )
            case dataflow.Gather(table, index, _, first):
                numbers = values[index][:, 0].astype(np.int64)
                values[dataflow.ChainValue(number)] = tensors[table][first + numbers]
            case dataflow.Product(moving, weights, k, add, first):
                product = multiplied(
                    values[moving], tensors[weights.tensor][weights.numbers], first, k
                )
                with np.errstate(all="ignore"):
                    values[dataflow.ChainValue(number)] = (
                        product if add is None else product + values[add]
                    )
            case dataflow.Compute(inputs, operations, outputs):
                results = computed(operations, outputs, [values[value] for value in inputs])
                for output, result in enumerate(results):
                    values[dataflow.ChainValue(number, output)] = np.broadcast_to(
                        result, (chain.count, dataflow.LANES)
                    )
            case dataflow.Shuffle(value=value, lanes=lanes):
                values[dataflow.ChainValue(number)] = shuffled(values[value], lanes)
            case dataflow.Transpose(inputs):
                for output, result in enumerate(transposed([values[v] for v in inputs])):
                    values[dataflow.ChainValue(number, output)] = result
            case dataflow.Write(value, rows):
                tensors[rows.tensor][rows.numbers] = values[value]
            case _:
                raise JobError(f"chain '{chain.name}' goes to other chips")
    return values


def _rows(tensors: Tensors, name: str, numbers: NDArray[np.int64], frame: str) -> Arrays:
    """Rows of a tensor; below zero that of the frame, or zeros."""
    rows = tensors[name][np.maximum(numbers, 0)]
    outside = numbers < 0
    if outside.any():
        rows[outside] = tensors[frame][0] if frame else 0
    return rows

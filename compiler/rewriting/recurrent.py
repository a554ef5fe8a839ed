"""LSTM, GRU and RNN taken apart: products of the whole input, then a Scan over time.

    z = MatMul(x, w) + b                            every step's share of the input, at once
    h = Scan(h0, z): h = act(z_t + MatMul(h, r))    what has to be done step by step

Semantics are those of RNN 22, GRU 22 and LSTM 22 of the ONNX standard (opset 7 on has the same but
for `layout`). Gates are products and scanned tensors of their own, so that no gate is cut out of
another. Invariant: a part that is known is a constant here and now, so that a body's weights are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tilesmith.compiler.graph.cells import CELLS, Cell, activations_of
from tilesmith.compiler.graph.graph import Node, Subgraph, attributes_of, view
from tilesmith.compiler.rewriting.rewrite import Rewriter

OPERATORS = tuple(CELLS)

FIRST_OPSET = 7


def taken_apart(rewriter: Rewriter, node: Node) -> list[Node] | None:
    """The nodes that compute an LSTM, a GRU or an RNN, Scans among them; None where that cannot be
    said before running, or in no such form."""
    opset = rewriter.graph.opset
    known = all(rewriter.info(name).known for name in (*node.reads, *node.writes))
    if opset < FIRST_OPSET or not known or rewriter.info(node.inputs[0]).dtype != "float32":
        return None
    if node.input(4) and opset < 10:  # Less of whole numbers, Where, ReverseSequence
        return None
    if any(extent == 0 for name in node.reads for extent in rewriter.info(name).dims):
        return None
    ranks = [len(rewriter.info(name).dims) for name in node.inputs[:3]]
    if ranks != [3, 3, 3]:
        return None
    whole = _Recurrent(rewriter, node)
    return whole.nodes_or_none() if whole.fits() else None


@dataclass(frozen=True)
class _Sizes:
    steps: int
    batch: int
    inputs: int
    hidden: int


class _Recurrent:
    """One node on its way to others."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.rewriter, self.node = rewriter, node
        self.cell: Cell = CELLS[node.operator]
        self.nodes: list[Node] = []
        self.batch_first = bool(node.attribute("layout", 0))
        steps, batch, inputs = rewriter.info(node.inputs[0]).dims
        if self.batch_first:
            steps, batch = batch, steps
        hidden = rewriter.info(node.inputs[2]).dims[2]
        self.sizes = _Sizes(steps, batch, inputs, hidden)
        direction = str(node.attribute("direction", "forward"))
        self.backwards = {"forward": [False], "reverse": [True]}.get(direction, [False, True])

    def fits(self) -> bool:
        """Whether every operand and result has the shape that the standard says, which ONNX's
        inference does not look at."""
        sizes, gates, count = self.sizes, self.cell.gates, len(self.backwards)
        hidden = sizes.hidden
        state: tuple[int, ...] = (count, sizes.batch, hidden)
        rows: tuple[int, ...] = (sizes.steps, count, sizes.batch, hidden)
        if self.batch_first:
            state = (sizes.batch, count, hidden)
            rows = (sizes.batch, sizes.steps, count, hidden)
        wanted = {
            1: (count, gates * hidden, sizes.inputs),
            2: (count, gates * hidden, hidden),
            3: (count, 2 * gates * hidden),
            4: (sizes.batch,),
            5: state,
            6: state,
            7: (count, 3 * hidden),
        }
        operands = zip(self.node.inputs, (wanted.get(i) for i in range(8)), strict=False)
        results = zip(self.node.outputs, (rows, state, state), strict=False)
        return self.node.attribute("hidden_size", hidden) == hidden and all(
            self.rewriter.info(name).dims == dims
            for name, dims in (*operands, *results)
            if name and dims is not None
        )

    def nodes_or_none(self) -> list[Node] | None:
        sizes, node = self.sizes, self.node
        activations = activations_of(node, self.cell, len(self.backwards))
        if activations is None:
            return None
        sequence = node.inputs[0]
        if self.batch_first:
            shape = (sizes.steps, sizes.batch, sizes.inputs)
            sequence = self.op("Transpose", sequence, shape=shape, perm=(1, 0, 2))
        lengths = node.input(4)
        mask = self._mask(lengths) if lengths else ""
        rows, finals = [], []
        for number, back in enumerate(self.backwards):
            row, *final = self._direction(
                number, back, sequence, lengths, mask, activations[number]
            )
            rows.append(row)
            finals.append(final)
        self._write(rows, finals)
        return self.nodes

    # -- parts --------------------------------------------------------------------------------
    def op(
        self,
        operator: str,
        *sources: str,
        shape: Sequence[int],
        dtype: str = "float32",
        **own: Any,
    ) -> str:
        """An ONNX operator of one output; returns the output's name."""
        result = self.rewriter.add_tensor(self.node.writes[0], dtype, tuple(shape))
        self.nodes.append(
            Node(operator, sources, (result,), result, attributes=attributes_of(**own))
        )
        return result

    def constant(self, value: Any, dtype: str = "float32") -> str:
        return self.rewriter.add_constant(self.node.writes[0], np.array(value, dtype), dtype)

    def view(self, source: str, shape: Sequence[int], offset: int = 0) -> str:
        result = self.rewriter.add_tensor(
            self.node.writes[0], self.rewriter.info(source).dtype, tuple(shape)
        )
        self.nodes.append(view(source, result, offset=offset))
        return result

    def part(self, position: int, offset: int, shape: tuple[int, ...], turned: bool = False) -> str:
        """Elements of an input from `offset` on, its two axes swapped if `turned`; "" if the input
        is left out."""
        name = self.node.input(position)
        if not name:
            return ""
        value = self.rewriter.constant(name)
        if value is not None:
            size = int(np.prod(shape))
            cut = value.reshape(-1)[offset : offset + size].reshape(shape)
            return self.constant(np.ascontiguousarray(cut.T if turned else cut))
        part = self.view(name, shape, offset)
        return self.op("Transpose", part, shape=shape[::-1], perm=(1, 0)) if turned else part

    def _mask(self, lengths: str) -> str:
        """Which steps are before the end of each sequence: bool[steps, batch, 1]."""
        steps, batch = self.sizes.steps, self.sizes.batch
        kind = self.rewriter.info(lengths).dtype
        numbers = self.constant(np.arange(steps).reshape(steps, 1, 1), kind)
        shaped = self.view(lengths, (1, batch, 1))
        return self.op("Less", numbers, shaped, shape=(steps, batch, 1), dtype="bool")

    # -- one direction --------------------------------------------------------------------------
    def _direction(
        self,
        number: int,
        back: bool,
        sequence: str,
        lengths: str,
        mask: str,
        activations: Sequence[Callable[..., str]],
    ) -> list[str]:
        """Names of the rows, [steps, batch, hidden], and of the last states, [batch, hidden]."""
        sizes = self.sizes
        if back and lengths:
            sequence = self._reversed(sequence, lengths)
        shares = [self._share(number, gate, sequence) for gate in range(self.cell.gates)]
        states = [self._initial(position, number) for position in self.cell.states]
        scanned = [*shares, *([mask] if mask else [])]
        body = _Body(self, number, activations, bool(mask)).graph()
        dims = (sizes.batch, sizes.hidden)
        outputs = [self.rewriter.add_tensor(self.node.writes[0], "float32", dims) for _ in states]
        rows = self.rewriter.add_tensor(self.node.writes[0], "float32", (sizes.steps, *dims))
        flags = (int(back and not lengths),) * len(scanned)
        attributes = attributes_of(
            body=Subgraph(body.SerializeToString()), num_scan_inputs=len(scanned),
            scan_input_directions=flags, scan_output_directions=flags[:1],
        )  # fmt: skip
        self.nodes.append(
            Node(
                "Scan", (*states, *scanned), (*outputs, rows), self.node.name or rows,
                attributes=attributes,
            )
        )  # fmt: skip
        if back and lengths:
            rows = self._reversed(rows, lengths)
        return [rows, *outputs]

    def _reversed(self, name: str, lengths: str) -> str:
        shape = self.rewriter.info(name).dims
        if self.rewriter.info(lengths).dtype != "int64":
            dims = self.rewriter.info(lengths).dims
            lengths = self.op(
                "Cast", lengths, shape=dims, dtype="int64", to=int(onnx.TensorProto.INT64)
            )
        return self.op("ReverseSequence", name, lengths, shape=shape, batch_axis=1, time_axis=0)

    def _share(self, number: int, gate: int, sequence: str) -> str:
        """What the input gives to a gate in every step, biases included: [steps, batch, hidden]."""
        sizes, cell = self.sizes, self.cell
        first = (number * cell.gates + gate) * sizes.hidden
        weight = self.part(1, first * sizes.inputs, (sizes.hidden, sizes.inputs), turned=True)
        count = sizes.steps * sizes.batch
        flat = self.view(sequence, (count, sizes.inputs))
        share = self.op("MatMul", flat, weight, shape=(count, sizes.hidden))
        for own in (True, False):
            if (own or not cell.keeps_bias(self.node, gate)) and (
                bias := self.bias(number, gate, own)
            ):
                share = self.op("Add", share, bias, shape=(count, sizes.hidden))
        return self.view(share, (sizes.steps, sizes.batch, sizes.hidden))

    def bias(self, number: int, gate: int, of_input: bool) -> str:
        """A gate's bias, of the input's product or of the state's; "" without one."""
        gates, hidden = self.cell.gates, self.sizes.hidden
        offset = (number * 2 + (0 if of_input else 1)) * gates * hidden + gate * hidden
        return self.part(3, offset, (hidden,))

    def recurrence(self, number: int, gate: int) -> str:
        """A gate's weights of the state: [hidden, hidden], to be multiplied from the right."""
        hidden = self.sizes.hidden
        first = (number * self.cell.gates + gate) * hidden
        return self.part(2, first * hidden, (hidden, hidden), turned=True)

    def peephole(self, number: int, gate: int) -> str:
        """How a gate of an LSTM sees the cell: [hidden]; "" without."""
        hidden = self.sizes.hidden
        return self.part(7, (number * 3 + gate) * hidden, (hidden,))

    def _initial(self, position: int, number: int) -> str:
        batch, hidden = self.sizes.batch, self.sizes.hidden
        name = self.node.input(position)
        if not name:
            return self.constant(np.zeros((batch, hidden)))
        if self.batch_first and len(self.backwards) > 1 and batch > 1:
            shape = (len(self.backwards), batch, hidden)
            name = self.op("Transpose", name, shape=shape, perm=(1, 0, 2))
        return self.view(name, (batch, hidden), number * batch * hidden)

    # -- results ------------------------------------------------------------------------------
    def _write(self, rows: list[str], finals: list[list[str]]) -> None:
        steps, batch, hidden = self.sizes.steps, self.sizes.batch, self.sizes.hidden
        count = len(rows)
        results = [
            (rows, (steps, 1, batch, hidden), 1, (2, 0, 1, 3)),
            *(
                (list(final), (1, batch, hidden), 0, (1, 0, 2))
                for final in zip(*finals, strict=True)
            ),
        ]
        for position, (parts, shape, axis, order) in enumerate(results):
            if position >= len(self.node.outputs) or not self.node.outputs[position]:
                continue
            views = [self.view(name, shape) for name in parts]
            whole = tuple(count if at == axis else extent for at, extent in enumerate(shape))
            output = views[0]
            if count > 1:
                output = self.op("Concat", *views, shape=whole, axis=axis)
            if self.batch_first:
                dims = tuple(whole[at] for at in order)
                output = self.op("Transpose", output, shape=dims, perm=order)
            self.nodes.append(view(output, self.node.outputs[position]))


class _Body:
    """The step of one direction, as an ONNX graph over names that nothing else has.

    Its inputs are the states, a share for each gate and, if sequences have lengths, a flag for each
    sequence that has not ended; its outputs the states and what is stacked.
    """

    def __init__(
        self,
        whole: _Recurrent,
        number: int,
        activations: Sequence[Callable[..., str]],
        masked: bool,
    ) -> None:
        self.whole, self.number, self.masked = whole, number, masked
        self.activations = activations
        self.protos: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.states = [self.fresh() for _ in whole.cell.states]
        self.shares = [self.fresh() for _ in range(whole.cell.gates)]

    def fresh(self) -> str:
        return self.whole.rewriter.fresh(self.whole.node.writes[0])

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        result = self.fresh()
        self.protos.append(helper.make_node(operator, list(inputs), [result], **attributes))
        return result

    def scalar(self, value: float) -> str:
        name = self.fresh()
        self.weights.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, (), [value]))
        return name

    def gate(self, number: int, state: str) -> str:
        """A gate's share, and what the state gives to it."""
        product = self.op("MatMul", state, self.whole.recurrence(self.number, number))
        return self.op("Add", product, self.shares[number])

    def activated(self, number: int, value: str) -> str:
        """An activation of what is clipped first, where the node says so."""
        clip = float(self.whole.node.attribute("clip", 0.0))
        if clip > 0:
            value = self.op("Min", self.op("Max", value, self.scalar(-clip)), self.scalar(clip))
        return self.activations[number](self, value)

    def graph(self) -> onnx.GraphProto:
        results = self.whole.cell.step(self, self.whole.node)
        row, flag = results[0], self.fresh()
        if self.masked:
            row = self.op("Where", flag, row, self.scalar(0.0))
            results = [
                self.op("Where", flag, new, old)
                for new, old in zip(results, self.states, strict=True)
            ]
        numbers = onnx.TensorProto.FLOAT
        inputs = [
            helper.make_tensor_value_info(name, numbers, None)
            for name in (*self.states, *self.shares)
        ]
        if self.masked:
            inputs.append(helper.make_tensor_value_info(flag, onnx.TensorProto.BOOL, None))
        row = self.op("Identity", row)
        outputs = [helper.make_tensor_value_info(name, numbers, None) for name in (*results, row)]
        return helper.make_graph(self.protos, "step", inputs, outputs, self.weights)

"""Cells of recurrent operators: what one step computes, and the activations it may use.

Formulas, orders of gates and defaults are those of RNN 22, GRU 22 and LSTM 22 of the ONNX standard;
where activations are asked for beyond those it lists (`Affine` and others), they are onnxruntime's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilesmith.compiler.graph.graph import Node


class _Whole(Protocol):
    """The operator that is taken apart."""

    def recurrence(self, number: int, gate: int) -> str:
        """Weights by which a gate takes the state."""

    def bias(self, number: int, gate: int, of_input: bool) -> str:
        """A gate's bias, "" without one."""

    def peephole(self, number: int, gate: int) -> str:
        """Weights by which a gate sees the cell, "" without."""


class _Step(Protocol):
    """A body under construction (`compiler.rewriting.recurrent`), of direction `number`."""

    number: int
    states: list[str]
    shares: list[str]
    activations: "Sequence[Activation]"

    @property
    def whole(self) -> _Whole:
        """What it is a step of."""

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator; returns its output."""

    def scalar(self, value: float) -> str:
        """Adds a number."""

    def gate(self, number: int, state: str) -> str:
        """A gate before its activation."""

    def activated(self, number: int, value: str) -> str:
        """An activation of what is clipped first."""


Activation = Callable[[_Step, str], str]


@dataclass(frozen=True)
class Cell:
    """A recurrent operator.

    Attributes:
        gates: how many.
        states: the node's inputs that are states at first; the first is what is stacked.
        activations: those taken where the node names none.
        step: writes one step into a body; returns the new states.
        keeps_bias: whether a gate's bias of the state's product is added in the step, not before.
    """

    gates: int
    states: tuple[int, ...]
    activations: tuple[str, ...]
    step: Callable[[_Step, Node], list[str]]
    keeps_bias: Callable[[Node, int], bool] = lambda node, gate: False


def _rnn(body: _Step, node: Node) -> list[str]:
    (state,) = body.states
    return [body.activated(0, body.gate(0, state))]


def _gru(body: _Step, node: Node) -> list[str]:
    """Gates z, r, h."""
    (state,) = body.states
    update = body.activated(0, body.gate(0, state))
    reset = body.activated(0, body.gate(1, state))
    if _resets_late(node, 2):
        product = body.op("MatMul", state, body.whole.recurrence(body.number, 2))
        if bias := body.whole.bias(body.number, 2, False):
            product = body.op("Add", product, bias)
        whole = body.op("Add", body.op("Mul", reset, product), body.shares[2])
    else:
        whole = body.gate(2, body.op("Mul", reset, state))
    new = body.activated(1, whole)
    kept = body.op("Sub", state, new)
    return [body.op("Add", new, body.op("Mul", update, kept))]


def _resets_late(node: Node, gate: int) -> bool:
    return gate == 2 and bool(node.attribute("linear_before_reset", 0))


def _lstm(body: _Step, node: Node) -> list[str]:
    """Gates i, o, f, c; peepholes i, o, f."""
    state, cell = body.states

    def gate(number: int, seen: str) -> str:
        value = body.gate(number, state)
        if number < 3 and (weights := body.whole.peephole(body.number, number)):
            value = body.op("Add", value, body.op("Mul", weights, seen))
        return value

    taken = body.activated(0, gate(0, cell))
    if node.attribute("input_forget", 0):
        forgotten = body.op("Sub", body.scalar(1.0), taken)
    else:
        forgotten = body.activated(0, gate(2, cell))
    new = body.activated(1, gate(3, cell))
    cell = body.op("Add", body.op("Mul", forgotten, cell), body.op("Mul", taken, new))
    given = body.activated(0, gate(1, cell))
    return [body.op("Mul", given, body.activations[2](body, cell)), cell]


CELLS: dict[str, Cell] = {
    "RNN": Cell(1, (5,), ("Tanh",), _rnn),
    "GRU": Cell(3, (5,), ("Sigmoid", "Tanh"), _gru, _resets_late),
    "LSTM": Cell(4, (5, 6), ("Sigmoid", "Tanh", "Tanh"), _lstm),
}
"""By ONNX operator."""


def _plain(operator: str) -> Callable[[float, float], Activation]:
    return lambda alpha, beta: lambda body, x: body.op(operator, x)


def _affine(alpha: float, beta: float) -> Activation:
    def write(body: _Step, x: str) -> str:
        return body.op("Add", body.op("Mul", x, body.scalar(alpha)), body.scalar(beta))

    return write


def _scaled_tanh(alpha: float, beta: float) -> Activation:
    def write(body: _Step, x: str) -> str:
        inner = body.op("Tanh", body.op("Mul", x, body.scalar(beta)))
        return body.op("Mul", inner, body.scalar(alpha))

    return write


def _with_alpha(operator: str) -> Callable[[float, float], Activation]:
    return lambda alpha, beta: lambda body, x: body.op(operator, x, alpha=alpha)


def _hard_sigmoid(alpha: float, beta: float) -> Activation:
    return lambda body, x: body.op("HardSigmoid", x, alpha=alpha, beta=beta)


ACTIVATIONS: dict[str, tuple[Callable[[float, float], Activation], float | None, float | None]] = {
    "Relu": (_plain("Relu"), None, None),
    "Tanh": (_plain("Tanh"), None, None),
    "Sigmoid": (_plain("Sigmoid"), None, None),
    "Affine": (_affine, 1.0, 0.0),
    "LeakyRelu": (_with_alpha("LeakyRelu"), 0.01, None),
    "ThresholdedRelu": (_with_alpha("ThresholdedRelu"), 1.0, None),
    "ScaledTanh": (_scaled_tanh, 1.0, 1.0),
    "HardSigmoid": (_hard_sigmoid, 0.2, 0.5),
    "Elu": (_with_alpha("Elu"), 1.0, None),
    "Softsign": (_plain("Softsign"), None, None),
    "Softplus": (_plain("Softplus"), None, None),
}
"""By name, which models may write in any case: what writes it, and the defaults of its numbers."""

_BY_SMALL_NAME = {name.lower(): activation for name, activation in ACTIVATIONS.items()}


def activations_of(node: Node, cell: Cell, directions: int) -> list[list[Activation]] | None:
    """The activations of each direction, in order; None where one has no name here.

    Numbers are handed out, in the order they are listed, to the activations that take them.
    """
    names: Sequence[str] = node.attribute("activations") or cell.activations * directions
    count = len(cell.activations)
    if len(names) != count * directions:
        return None
    alphas, betas = (list(node.attribute(f"activation_{n}") or ()) for n in ("alpha", "beta"))
    activations: list[Activation] = []
    for name in names:
        if name.lower() not in _BY_SMALL_NAME:
            return None
        write, alpha, beta = _BY_SMALL_NAME[name.lower()]
        if alpha is not None and alphas:
            alpha = float(alphas.pop(0))
        if beta is not None and betas:
            beta = float(betas.pop(0))
        activations.append(write(alpha or 0.0, beta or 0.0))
    return [activations[start : start + count] for start in range(0, len(activations), count)]

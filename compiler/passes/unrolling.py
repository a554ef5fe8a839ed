"""Loops as the copies of their bodies: for targets that place a whole program in time.

LSTM, GRU and RNN are such loops behind products of the whole input (`recurrent`). Weights are there
once. What is left as it is runs on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import REPEAT, Body, Graph, Node, Row, attributes_of, view
from tilesmith.compiler.onnx.bodies import Opened
from tilesmith.compiler.passes.bodies import OpenBodies
from tilesmith.compiler.rewriting.recurrent import OPERATORS
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.expressions.ranges import WholeRange


@dataclass(frozen=True)
class UnrollLoops(RulePass):
    """Loops that are counted are the copies of their bodies, one after another.

        h, ys = Scan(h0, xs) body=<h' = Tanh(Add(MatMul(h, r), x))>           before
        h1 = Tanh(Add(MatMul(h0, r), View(xs, part 0)))                       after
        h2 = Tanh(Add(MatMul(h1, r), View(xs, part 1)))
        ys = Concat(View(h1), View(h2)), h = View(h2)

    Contract: an imported graph in; out, the same values. A Loop or Scan is unrolled if the number
    of its iterations is known, the copies have `most` nodes at most, and the products of one at
    least `least` operations; If stays as it is.
    """

    name = "unroll-loops"

    most: int
    least: int = 0

    revisits = False

    @rule("Loop", "Scan", *OPERATORS)
    def _unroll(self, rewriter: Rewriter, node: Node) -> None:
        opened = _AsTheyAre(lambda body: body).replacement(rewriter, node)
        if opened is not None and all(map(self._few, opened)):
            rewriter.replace(node, *_all_unrolled(rewriter, opened))

    def _few(self, node: Node) -> bool:
        """Whether a node is no loop, or one that can be unrolled."""
        if node.operator != REPEAT:
            return True
        nodes = node.bodies[0].graph.nodes
        counted = int(node.attribute("limit")) < 0 and not node.attribute("test")
        plain = not any(inner.captures for inner in nodes)
        few = int(node.attribute("trips")) * len(nodes) <= self.most
        return counted and plain and few and _work(node.bodies[0].graph) >= self.least


def _work(graph: Graph) -> int:
    """Operations of a body's matrix products whose shapes are known."""
    operations = 0
    for node in graph.nodes:
        infos = [graph.info(name) for name in (*node.inputs[:1], *node.outputs[:1]) if name]
        if node.is_onnx("MatMul", "Gemm") and all(info.known for info in infos):
            given, product = infos
            depth = given.dims[0 if node.attribute("transA", 0) else -1]
            operations += 2 * product.elements * depth
    return operations


class _AsTheyAre(OpenBodies):
    """Opens bodies, and leaves what is in them as the model has it."""

    def lowered(self, body: Opened, **known: WholeRange) -> Opened | None:
        return body


def _all_unrolled(rewriter: Rewriter, nodes: Sequence[Node]) -> list[Node]:
    unrolled: list[Node] = []
    for node in nodes:
        unrolled += _unrolled(rewriter, node) if node.operator == REPEAT else [node]
    return unrolled


def _unrolled(rewriter: Rewriter, node: Node) -> list[Node]:
    """The copies of a loop's body, one after another, and what comes of them."""
    body, trips = node.bodies[0], int(node.attribute("trips"))
    graph, copies = body.graph, list[Node]()
    known = {
        name: rewriter.add_constant(name, value, graph.info(name).dtype)
        for name, value in graph.constants.items()
    }
    known |= {inside: node.inputs[number] for number, inside in body.shared}
    rows: dict[Row, dict[int, str]] = {row: {} for row in body.writes}
    state = {c.entry: _initial(rewriter, node, c.initial) for c in body.carried}
    for trip in range(trips):
        names = {**known, **state}
        if body.counter:
            names[body.counter] = rewriter.add_constant(body.counter, np.array(trip), "int64")
        for row in body.reads:
            info = graph.info(row.inside)
            names[row.inside] = rewriter.add_tensor(row.inside, info.dtype, info.dims)
            part = (row.start + trip * row.step) * info.elements
            copies.append(view(node.inputs[row.outside], names[row.inside], offset=part))
        copies += _copied(rewriter, graph, names)
        state = {c.entry: names[c.exit] for c in body.carried}
        for row in body.writes:
            rows[row][row.start + trip * row.step] = names[row.inside]
    return [*copies, *_results(rewriter, node, body, state, rows)]


def _initial(rewriter: Rewriter, node: Node, number: int) -> str:
    """What is carried into the first iteration."""
    if number >= 0:
        return node.inputs[number]
    return rewriter.add_constant(node.name, np.array(True), "bool")


def _copied(rewriter: Rewriter, graph: Graph, names: dict[str, str]) -> list[Node]:
    """The nodes of a body over tensors of their own, whose names come into `names`."""
    copies = []
    for node in graph.nodes:
        for name in node.writes:
            info = graph.info(name)
            names[name] = rewriter.fresh(name)
            rewriter.tensors[names[name]] = replace(info, name=names[name])
        inputs, outputs = (
            tuple(names[name] if name else "" for name in side)
            for side in (node.inputs, node.outputs)
        )
        copies.append(replace(node, inputs=inputs, outputs=outputs, name=outputs[0] or node.name))
    return copies


def _results(
    rewriter: Rewriter, node: Node, body: Body, state: dict[str, str],
    rows: dict[Row, dict[int, str]],
) -> list[Node]:  # fmt: skip
    """What of the last iteration is the node's, and the rows of all put together."""
    nodes = [
        view(state[carried.entry], node.outputs[carried.final])
        for carried in body.carried
        if carried.final >= 0 and node.outputs[carried.final]
    ]
    for row, parts in rows.items():
        whole, views = node.outputs[row.outside], list[str]()
        for number in sorted(parts):
            info = rewriter.info(parts[number])
            views.append(rewriter.add_tensor(parts[number], info.dtype, (1, *info.dims)))
            nodes.append(view(parts[number], views[-1]))
        if len(views) == 1:
            nodes[-1] = view(nodes[-1].inputs[0], whole)
        else:
            nodes.append(
                Node("Concat", tuple(views), (whole,), whole, attributes=attributes_of(axis=0))
            )
    return nodes

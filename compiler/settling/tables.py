"""Tables that are weights too: one copy for those who look up rows, and for the product.

The embedding of a language model is often its last product's weights. The product keeps them in
panels (`Scheduler.panels`); rows are few, and can be picked from there (`gather_packed`), so that
the plain table, which nobody else reads, need not be kept.

Invariant: the values are the same; what changes is where rows are read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.recipe.layouts import PLAIN
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.options import Option
from tilesmith.compiler.settling.settlement import Settled
from tilesmith.search_space.workloads.scheduler import Panels, find_scheduler, is_scheduled
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

_LEAST = 1 << 20
"""Bytes of a table for which it is worth the trouble."""

_FEW = 8
"""Times as many elements as are picked has a table to have: elements of a row in panels lie a line
apart, so that picking nearly all of it would take several times as long."""


@dataclass(frozen=True)
class _Weights:
    """Constant weights that a product keeps in panels; `kernel` is what the product writes."""

    array: NDArray[Any]
    panels: Panels
    kernel: str

    def table(self) -> NDArray[Any]:
        """The rows that a panel has side by side."""
        return self.array if self.panels.axis == 0 else self.array.T

    def holds(self, table: NDArray[Any]) -> bool:
        """Whether they are a table, filled up or not; few that are not take long to tell apart."""
        rows, fill = self.table(), self.panels.fill
        filled = table.shape[1] + -table.shape[1] % fill
        if len(rows) != len(table) or rows.shape[1] not in (table.shape[1], filled):
            return False
        rows, some = rows[:, : table.shape[1]], slice(None, None, max(1, len(table) // 8))
        alike = rows.dtype == table.dtype and np.array_equal(rows[some], table[some])
        return alike and np.array_equal(rows, table)

    def packed(self) -> NDArray[Any]:
        """The panels, as the product has them."""
        return self.panels.pack(self.table())


def share_tables(settled: Settled, chooser: ScheduleChooser) -> Settled:
    """Let rows be picked from the panels of products that have the same table."""
    graph, options = settled.graph, dict(settled.options)
    weights = list(_weights(graph, options, chooser))
    constants, tensors = dict(graph.constants), dict(graph.tensors)
    changed: dict[Node, Node] = {}
    packed: dict[tuple[str, str], str] = {}
    for name, readers in _tables(graph) if weights else ():
        table = graph.constants[name]
        same = next((w for w in weights if w.holds(table)), None)
        if same is None:
            continue
        new = f"{name} in panels of {same.panels.block}"
        pairs = {r: _packed(r, options[r], new, same.panels, chooser) for r in readers}
        if any(pair is None for pair in pairs.values()):
            continue
        constants[new] = same.packed()
        packed[same.kernel, same.panels.buffer] = new
        tensors[new] = replace(tensors[name], name=new, shape=constants[new].shape)
        for reader, pair in pairs.items():
            assert pair is not None
            changed[reader], options[pair[0]] = pair
            del options[reader]
    if not changed:
        return settled
    nodes = tuple(changed.get(node, node) for node in graph.nodes)
    graph = graph.with_(nodes=nodes, constants=constants, tensors=tensors)
    ordered = {node: options[node] for node in nodes if node in options}
    return replace(settled, graph=graph, options=ordered, packed=packed)


def _weights(
    graph: Graph, options: Mapping[Node, Option], chooser: ScheduleChooser
) -> Iterator[_Weights]:
    """Large constants that kernels keep in panels."""
    for node, option in options.items():
        workload, config = option.workload, option.config
        if workload is None or config is None:
            continue
        scheduler = find_scheduler(workload.operator, chooser.target.family)
        if scheduler is None:
            continue
        kept = scheduler.panels(workload, chooser.target, config)
        operands = template_of(workload.operator).operands(workload) if kept else ()
        for operand, name in zip(operands, node.inputs, strict=False):
            array = graph.constants.get(name)
            if operand.name in kept and array is not None and array.nbytes >= _LEAST:
                rows = (operand.shape[0], array.size // operand.shape[0])
                yield _Weights(array.reshape(rows), kept[operand.name], node.outputs[0])


def _tables(graph: Graph) -> Iterator[tuple[str, list[Node]]]:
    """Large constants that only kernels read, each a few rows."""
    for name, array in graph.constants.items():
        readers = list(graph.consumers.get(name, ()))
        large = array.ndim == 2 and array.nbytes >= _LEAST and name not in graph.output_names
        if large and readers and all(_picks_few(reader, name, array) for reader in readers):
            yield name, readers


def _picks_few(node: Node, name: str, table: NDArray[Any]) -> bool:
    workload = node.workload
    if workload is None or workload.operator != "gather" or node.inputs[0] != name:
        return False
    picked = template_of("gather").output(workload).shape
    few = _FEW * int(np.prod(picked, dtype=np.int64)) <= table.size
    return few and not workload.integer("axis") and workload.shape("shape") == table.shape


def _packed(
    node: Node, option: Option, name: str, panels: Panels, chooser: ScheduleChooser
) -> tuple[Node, Option] | None:
    """The node as one that reads panels; None where the target has no such kernel."""
    old = node.work
    columns = old.shape("shape")[1]
    if old.text("index") not in ("int64", "int32") or columns % panels.group:
        return None
    parameters: dict[str, int | str] = {
        "shape": shape_text(old.shape("shape")),
        "block": panels.block,
        "group": panels.group,
        "fill": panels.fill if columns % panels.fill else 0,
        "indices": old.text("indices"),
        "index": old.text("index"),
    }
    workload = Workload.of("gather_packed", parameters, dtype=old.dtype)
    workload = replace(workload, constants=old.constants)
    if not is_scheduled(workload, chooser.target):
        return None
    best = chooser.best(workload)
    reader = replace(node, workload=workload, inputs=(name, *node.inputs[1:]))
    return reader, Option.of(workload, best, (PLAIN,) * len(option.operands), PLAIN)

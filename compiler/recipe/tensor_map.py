"""Which tensor of a model lies where, from which step on: for those who look into a run.

Ordinary runs never read it. Tensors are found by their names, which passes keep: a tensor that a
pass leaves under its name has the model's values (another layout or element type perhaps), and one
with other values gets another name.

Invariant: after its step, and before any later one, a tensor's bytes are its own; afterwards they
may be another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.graph.value_types import is_value_type
from tilesmith.compiler.recipe.layouts import PLAIN, normal, physical_bytes
from tilesmith.compiler.recipe.program import HeldTensor, Place, Recipe, TensorRef
from tilesmith.search_space.expressions.dtypes import STORED
from tilesmith.search_space.support.errors import ModelError, WorkloadError

VALUE = "value"


def held_tensors(
    graph: Graph,
    layouts: Mapping[str, str],
    ends: Mapping[Node, int],
    ref: Callable[[TensorInfo], TensorRef],
) -> tuple[HeldTensor, ...]:
    """Every tensor of a graph but constants, in topological order.

    Args:
        layouts: of tensors that are not plain.
        ends: number of each node's last step; of views and joins any.
        ref: a tensor's place.
    """
    ready = {info.name: -1 for info in graph.inputs}
    for node in graph.nodes:
        if any(name in graph.constants for name in node.inputs) and node.kind in ("view", "join"):
            continue
        if node.kind in ("view", "join"):
            end = max(ready.get(name, -1) for name in node.inputs)
        else:
            end = ends[node]
        ready |= dict.fromkeys(node.writes, end)
    tensors = []
    for name, step in ready.items():
        info = graph.info(name)
        place = ref(info).place
        if place.region == VALUE or info.known:
            layout = normal(layouts.get(name, PLAIN))
            tensors.append(HeldTensor(name, info.dtype, info.shape, place, layout, step))
    return tuple(tensors)


# -- in artifacts -------------------------------------------------------------------------------
def tensors_json(recipe: Recipe) -> dict[str, Any]:
    """A recipe's tensors for its manifest."""
    rows = [
        [t.name, t.dtype, None if t.shape is None else list(t.shape), t.place.region,
         t.place.offset, t.layout, t.step]
        for t in recipe.tensors
    ]  # fmt: skip
    return {"tensors": rows} if rows else {}


def read_tensors(
    manifest: Mapping[str, Any],
    place: Callable[[Any, int], Place],
    damaged: Callable[[str], ModelError],
) -> tuple[HeldTensor, ...]:
    """What `tensors_json` wrote; nothing from an artifact of before.

    Args:
        place: reads a place with so many bytes behind it.
        damaged: the error that says what is wrong.
    """
    last = len(manifest["steps"]) - 1
    tensors = []
    for name, dtype, shape, region, offset, layout, step in manifest.get("tensors", ()):
        if dtype not in (*STORED, "") and not is_value_type(str(dtype)):
            raise damaged(f"tensor '{name}' has the dtype {dtype!r}")
        if not isinstance(step, int) or not -1 <= step <= last:
            raise damaged(f"tensor '{name}' is written by step {step!r} of {last + 1}")
        dims = None if shape is None else tuple(_extent(e, damaged) for e in shape)
        if region != VALUE and (dims is None or dtype not in STORED):
            raise damaged(f"tensor '{name}' has no shape")
        size = 0
        if region != VALUE and dims is not None:
            try:
                size = physical_bytes(str(layout), dims, dtype)
            except (WorkloadError, IndexError) as error:
                raise damaged(f"tensor '{name}' has the layout {layout!r}") from error
        where = place([region, offset], size)
        tensors.append(HeldTensor(str(name), str(dtype), dims, where, normal(str(layout)), step))
    return tuple(tensors)


def _extent(value: Any, damaged: Callable[[str], ModelError]) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 36:
        raise damaged(f"an extent = {value!r} is out of range")
    return value

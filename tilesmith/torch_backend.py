"""`torch.compile(module, backend="tilesmith")`: graphs that TorchDynamo finds, compiled by us.

    compiled = torch.compile(module, backend="tilesmith")
    y = compiled(x)
    for graph in tilesmith.torch_backend.reports(): print(graph)

Dynamo guards what a graph was traced for (shapes, types, Python values) and asks for another graph
when a guard fails. Nothing here raises, but for wrong options: what cannot be compiled is left to
PyTorch, operator by operator, which one warning of the logger "tilesmith.torch" says for a graph;
`reports` says it to programs. See `tilesmith.capabilities.pytorch.torch_graphs` for weights, sizes
and gradients.

Options: `torch.compile(..., options={"target": ..., "database": ..., "threads": ...})`, the keyword
arguments of `tilesmith.compile`, "tune" among them; threads are PyTorch's own number unless given.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from tilesmith.capabilities.pytorch.torch_graphs import CompiledGraph, GraphReport
from tilesmith.jobs.background import tuning_of
from tilesmith.jobs.databases import BY_DEFAULT
from tilesmith.jobs.extras import required
from tilesmith.search_space.support.errors import InputError

__all__ = ["GraphReport", "reports", "tilesmith"]

NAME = "tilesmith"
_OPTIONS = (
    "target", "database", "require_tuned", "threads", "precision", "bits", "settings", "tune",
)  # fmt: skip

_graphs: list[weakref.ref[CompiledGraph]] = []


def tilesmith(
    graph: GraphModule,
    examples: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What Dynamo calls for a graph; gives what is called in its place.

    Args:
        graph: takes what `examples` are, gives a tuple.
        options: see the module's docstring.
        mode: PyTorch's own modes, which mean nothing here.

    Raises:
        InputError: an unknown option.
    """
    asked = dict(options or {})
    if unknown := sorted(asked.keys() - set(_OPTIONS)):
        raise InputError(
            f"the backend '{NAME}' has no option '{unknown[0]}'; it has {', '.join(_OPTIONS)}"
        )
    required("onnxscript", extra="torch")
    if not any("call" in node.op for node in graph.graph.nodes):
        eager: Callable[..., Any] = graph.forward
        return eager  # nothing to compute
    tuning = tuning_of(asked.pop("tune", None), asked.get("database", BY_DEFAULT))
    gradients = torch.is_grad_enabled() and any(
        getattr(e, "requires_grad", False) for e in examples
    )
    compiled = CompiledGraph(graph, asked, tuning, gradients=gradients)
    _graphs.append(weakref.ref(compiled))
    return compiled


tilesmith.reset = _graphs.clear  # type: ignore[attr-defined]  # `torch._dynamo.reset` calls it


def reports() -> list[GraphReport]:
    """What became of each graph in use since `torch._dynamo.reset`, in the order of its finding."""
    _graphs[:] = [held for held in _graphs if held() is not None]
    return [graph.report for held in _graphs if (graph := held()) is not None]

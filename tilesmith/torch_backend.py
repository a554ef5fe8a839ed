"""`torch.compile(module, backend="tilesmith")`: graphs that TorchDynamo finds, compiled by us.

Dynamo guards what a graph was traced for (shapes, types, Python values) and asks for another graph
when a guard fails. What is left to see to here, for each call of a graph:

- parameters and buffers come as arguments, and are constants of what is compiled, for kernels want
  their weights packed. A graph is compiled anew when one is another tensor, has other memory, or
  was written in place; what was written through `.data` is not seen.
- sizes that Dynamo keeps symbolic come as numbers: a graph is compiled for each set of them.
- what needs gradients, and what cannot be compiled, runs as PyTorch runs it: one warning of the
  logger "tilesmith.torch" says why. Nothing here raises, but for wrong options.

Options: `torch.compile(..., options={"target": ..., "database": ..., "threads": ...})`, the keyword
arguments of `tilesmith.compile`; threads are PyTorch's own number unless given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from tilesmith.compiler.executable import Executable
from tilesmith.compiler.pytorch.binding import (
    ArgumentView,
    BoundGraph,
    argument_views,
    is_literal,
    is_static,
    number_of,
)
from tilesmith.compiler.pytorch.calls import called
from tilesmith.compiler.pytorch.model import TorchModel, model_of
from tilesmith.jobs.compiling import build_fixed
from tilesmith.jobs.databases import BY_DEFAULT, here
from tilesmith.jobs.extras import required
from tilesmith.jobs.request import Request
from tilesmith.search_space.errors import InputError, TilesmithError

NAME = "tilesmith"
_OPTIONS = ("target", "database", "require_tuned", "threads", "precision", "settings")
_LIMIT = 8
"""How often one graph is compiled for other weights or other numbers, before it is left to
PyTorch: as often as Dynamo itself would."""

_log = logging.getLogger("tilesmith.torch")


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
    eager: Callable[..., Any] = graph.forward
    if torch.is_grad_enabled() and any(getattr(e, "requires_grad", False) for e in examples):
        _log.warning(
            "%s runs in PyTorch: it needs gradients, which compiled models do not have; call it "
            "under torch.no_grad()",
            _named(graph),
        )
        return eager
    if not any("call" in node.op for node in graph.graph.nodes):
        return eager  # nothing to compute
    views = argument_views(graph)
    if any(view.varies for view in views):
        _log.warning(
            "%s runs in PyTorch: it gives views of its arguments, of sizes that vary",
            _named(graph),
        )
        return eager
    asked["database"] = here(asked.get("database", BY_DEFAULT))
    return _Runner(graph, asked, views)


def _named(graph: GraphModule) -> str:
    """The graph for messages: by what it computes first."""
    first = next((n.name for n in graph.graph.nodes if "call" in n.op), "nothing")
    return f"a graph of {len(graph.graph.nodes)} nodes that begins with '{first}'"


@dataclass(eq=False)
class _Weights:
    """Tensors that were taken for constants, and what tells whether they still are."""

    tensors: list[torch.Tensor]
    versions: list[int] = field(init=False)
    addresses: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = [_version(t) for t in self.tensors]
        self.addresses = [t.data_ptr() for t in self.tensors]

    def same(self, tensors: Sequence[torch.Tensor]) -> bool:
        return (
            all(map(_is, tensors, self.tensors))
            and [_version(t) for t in tensors] == self.versions
            and [t.data_ptr() for t in tensors] == self.addresses
        )


def _size(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _is(one: Any, other: Any) -> bool:
    return one is other


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@dataclass(frozen=True, eq=False)
class _Entry:
    """A graph compiled for certain numbers and weights.

    Attributes:
        model, executable: what runs.
        weights: what it holds as constants; `places`: which arguments those are.
        feeds: which argument each input of the executable is.
    """

    model: TorchModel
    executable: Executable
    weights: _Weights
    places: tuple[int, ...]
    feeds: tuple[int, ...]


class _Runner:
    """Runs one graph: compiled, where that can be; see the module's docstring."""

    def __init__(
        self, graph: GraphModule, asked: Mapping[str, Any], views: Sequence[ArgumentView]
    ) -> None:
        self.graph, self._views = graph, views
        self.asked = {"threads": torch.get_num_threads(), **asked}
        self._lock = threading.Lock()
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._compiled = 0
        self._given_up = False
        held = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._static = tuple(i for i, node in enumerate(held) if is_static(node))
        self._literal = tuple(i for i, node in enumerate(held) if is_literal(node))
        fixed = {*self._static, *self._literal}
        self._varied = tuple(i for i in range(len(held)) if i not in fixed)

    def __call__(self, *args: Any) -> Any:
        if self._given_up:
            return self.graph.forward(*args)
        key = (*(_size(args[i]) for i in self._varied), *(args[i].item() for i in self._literal))
        entry = self._entries.get(key)
        if entry is None or not entry.weights.same([args[i] for i in entry.places]):
            entry = self._made(key, args)
            if entry is None:
                return self.graph.forward(*args)
        try:
            tensors = [args[i] for i in entry.feeds]
            results = called(entry.executable, entry.model.signature, tensors)
        except TilesmithError as error:
            self._give_up(str(error))
            return self.graph.forward(*args)
        for view in self._views:
            results[view.output] = view.of(args[view.argument])
        return tuple(results)

    def _made(self, key: tuple[Any, ...], args: Sequence[Any]) -> _Entry | None:
        with self._lock:
            if self._compiled >= _LIMIT * max(1, len(self._entries)) or len(self._entries) > 64:
                self._give_up("its weights or the numbers it is called with change all the time")
                return None
            self._compiled += 1
            try:
                self._entries[key] = entry = self._entry(args)
            except Exception as error:  # whatever it is, the user's program goes on
                self._give_up(str(error) or type(error).__name__)
                return None
            return entry

    def _entry(self, args: Sequence[Any]) -> _Entry:
        bound = BoundGraph(self.graph, args, self._static, self._literal)
        varied = [i for i in self._varied if isinstance(args[i], torch.Tensor)]
        model = model_of(bound, tuple(args[i] for i in varied), name="graph")
        executable = build_fixed(Request(model, **self.asked).resolved())
        feeds = tuple(
            number_of(s.name) if s.leaf < 0 else varied[s.leaf] for s in model.signature.sources
        )
        places = tuple(i for i in self._static if i not in feeds)
        return _Entry(model, executable, _Weights([args[i] for i in places]), places, feeds)

    def _give_up(self, reason: str) -> None:
        self._given_up = True
        self._entries.clear()
        _log.warning("%s runs in PyTorch: %s", _named(self.graph), reason)

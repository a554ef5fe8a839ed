"""`Pass`: a named rewriting of graphs, and the one way passes are run.

A pass is a frozen value: its fields are its options. What it promises stands in its class's
docstring, in three parts that `--print-passes` and the tests read: a first line, the rewriting as
`before` and `after`, and a paragraph `Contract:` of what may come in and what goes out.

Whoever wants to see every step of a compilation (a verifier, a dump) enters `observed`: observers
are told of passes run below them, without each function in between handing them on.
"""

import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import ClassVar

from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.graph.sources import kept_sources


@dataclass(frozen=True)
class Pass(ABC):
    """A rewriting of graphs; see the module's docstring for what a subclass states.

    Contract of all: the graph that comes in is left as it is; the very same object is returned if
    nothing changes; the caller's inputs and outputs keep their names, types and order.
    """

    name: ClassVar[str]
    """As listed and in the names of dumped files: words of small letters joined by `-`."""

    @abstractmethod
    def run(self, graph: Graph) -> Graph:
        """The rewritten graph."""

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(type(self)) or "").partition("\n")[0]

    @property
    def contract(self) -> str:
        """What its docstring says after `Contract:`, in one line."""
        text = (inspect.getdoc(type(self)) or "").partition("Contract:")[2]
        return " ".join(text.partition("\n\n")[0].split())

    @property
    def options(self) -> dict[str, str]:
        """Options that are texts and say something, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, str) and value}


_LOG = logging.getLogger(__name__)

Observer = Callable[[Pass, Graph, Graph], None]
"""Told after each pass: the pass, the graph before it, the graph after it."""

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


@contextmanager
def observed(*observers: Observer) -> Iterator[None]:
    """Tell `observers`, after those that are told already, of every pass run inside the block."""
    token = _observers.set((*_observers.get(), *observers))
    try:
        yield
    finally:
        _observers.reset(token)


def announce(step: Pass, before: Graph, after: Graph) -> None:
    """Tell the observers of a pass that ran; for passes that give more than a graph."""
    for observer in _observers.get():
        observer(step, before, after)


def apply(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """Run passes in order; what observers raise ends the run."""
    logged, watched = _LOG.isEnabledFor(logging.DEBUG), bool(_observers.get())
    for step in passes:
        before, begun = graph, time.perf_counter() if logged else 0.0
        graph = step.run(graph)
        if graph is not before:
            graph = kept_sources(before, graph)
        if graph is not before and logged:
            took = (time.perf_counter() - begun) * 1e3
            nodes = len(before.nodes), len(graph.nodes)
            _LOG.debug("pass %s: %d -> %d nodes, %.1f ms", step.name, *nodes, took)
        if watched:
            announce(step, before, graph)
    return graph

"""Graphs that TorchDynamo finds, compiled when they are first called: whole, or in parts.

For each call of a graph this sees to what Dynamo does not guard:

- parameters and buffers come as arguments, and are constants of what is compiled, for kernels want
  their weights packed: a graph that several layers share is compiled for each of them. It is
  compiled anew when one has other memory or was written in place; what was written through `.data`
  is not seen.
- sizes that Dynamo keeps symbolic come as numbers: a graph is compiled for each set of them, up to
  a limit (of sizes and layers together); what comes beyond it runs in PyTorch.
- what cannot be compiled is left to PyTorch, operator by operator
  (`capabilities.pytorch.partition`).
- gradients: nothing is kept for them. Who asks for them (`backward`) gets them by PyTorch's own
  run of the graph on the same arguments, and the graph runs in PyTorch from then on, for whoever
  asks once is training. Graphs that could not be run twice (they write their arguments, or draw
  random numbers) run in PyTorch from the start where gradients may be asked for.

Invariant: nothing here raises; one warning of the logger "tilesmith.torch" says what a graph leaves
to PyTorch, and `GraphReport` says it to programs.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from tilesmith.capabilities.pytorch import binding
from tilesmith.capabilities.pytorch.calls import called, results_of
from tilesmith.capabilities.pytorch.model import PureProgram, exported, is_random, pure_program
from tilesmith.capabilities.pytorch.partition import Partition, named, partitioned, replaced
from tilesmith.capabilities.pytorch.program import CallSignature
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.jobs.background import Tuning
from tilesmith.jobs.compilation.compiling import build_fixed
from tilesmith.jobs.requests.request import Request
from tilesmith.search_space.support.errors import ModelError, TilesmithError

_LIMIT = 8
"""How often one graph is compiled for other weights, before it is left to PyTorch: as often as
Dynamo itself would."""

_SIZES = 64
"""For how many sets of numbers, sizes and weights one graph is compiled."""

_log = logging.getLogger("tilesmith.torch")


@dataclass(frozen=True)
class GraphReport:
    """What became of a graph that `torch.compile` gave us.

    Attributes:
        name: what it computes first, and how many nodes it has.
        compiled: how many pieces of it are compiled: 1 of a graph that is compiled whole, 0 of one
            that runs in PyTorch or was not called yet.
        left: the operators that run in PyTorch, as PyTorch names them, and how often they stand in
            the graph.
        host: the nodes of compiled pieces that run in Python on the host.
        reason: why operators are left to PyTorch; "" if none is.
    """

    name: str
    compiled: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    host: tuple[str, ...] = ()
    reason: str = ""

    @property
    def whole(self) -> bool:
        """Whether nothing is left to PyTorch."""
        return self.compiled > 0 and not self.left


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


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last address of a tensor's elements; the last is one too far."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _example(tensor: torch.Tensor) -> torch.Tensor:
    """What a graph is traced with: some views, when written, cannot be traced, and of numbers of
    another kind the program would ask for what they are views of."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    other = tensor._base is not None and tensor._base.dtype != tensor.dtype
    return tensor if whole and not other else tensor.clone()


def _is(one: Any, other: Any) -> bool:
    return one is other


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@dataclass(frozen=True, eq=False)
class _Entry:
    """A graph compiled for certain numbers and weights.

    Attributes:
        runs: what runs: an executable, or a partition of the program.
        signature: what a call has to do beside.
        weights: what it holds as constants; `places`: which arguments those are.
        feeds: which argument each input of the executable is.
        views: results that are views of arguments and of other results.
    """

    runs: Executable | Partition
    signature: CallSignature
    weights: _Weights
    places: tuple[int, ...]
    feeds: tuple[int, ...]
    views: tuple[binding.ResultView, ...]
    orders: Mapping[int, tuple[int, ...]]

    def writes_shared(self, args: Sequence[Any]) -> bool:
        """Whether it writes an argument whose memory is another's, too: writes are done last here,
        and the other would be read as it was before."""
        if not self.signature.writes:
            return False
        written = {self.feeds[source] for _, source in self.signature.writes}
        places = {i: _bytes(arg) for i, arg in enumerate(args) if torch.is_tensor(arg)}
        return any(
            places[i][0] < end and start < places[i][1]
            for i in written
            for other, (start, end) in places.items()
            if other != i
        )

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The graph's results, but for views."""
        tensors = [args[i] for i in self.feeds]
        if isinstance(self.runs, Executable):
            results = called(self.runs, self.signature, tensors)
        else:
            results = results_of(self.runs.run(tensors), self.signature, tensors)
        for number, order in self.orders.items():
            results[number] = binding.laid_out(results[number], order)
        return results


class CompiledGraph:
    """Runs one graph: compiled, where that can be; see the module's docstring.

    Args:
        graph: takes what it is called with, gives a tuple.
        asked: keyword arguments of `Request`, and `require_tuned`; its database is `tuning`'s.
        tuning: how it is tuned while it is used, if it is.
        static: which arguments are weights; None: those that Dynamo says are.
        gradients: whether they may be asked for.
        inside: of another graph, which reports for it.
    """

    def __init__(
        self,
        graph: GraphModule,
        asked: Mapping[str, Any],
        tuning: Tuning,
        static: Sequence[int] | None = None,
        gradients: bool = False,
        inside: "CompiledGraph | None" = None,
    ) -> None:
        self.graph, self._gradients, self._inside = graph, gradients, inside
        self.asked = {"threads": torch.get_num_threads(), **asked, "database": tuning.known}
        self._require_tuned = bool(self.asked.pop("require_tuned", False))
        self._tuning = tuning
        self.report = GraphReport(_called(graph))
        self._views = tuple(binding.views_of(graph)) if inside is None else ()
        kept = {view.output for view in self._views}
        self._orders = {n: order for n, order in binding.orders_of(graph).items() if n not in kept}
        self._lock = threading.Lock()
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._compiled = 0
        self._given_up = False
        held = [n for n in graph.graph.nodes if n.op == "placeholder"]
        if static is None:
            static = [i for i, node in enumerate(held) if binding.is_static(node)]
        self._static = tuple(static)
        self._literal = tuple(i for i, node in enumerate(held) if binding.is_literal(node))
        fixed = {*self._static, *self._literal}
        self._varied = tuple(i for i in range(len(held)) if i not in fixed)

    def __call__(self, *args: Any) -> Any:
        entry = self._current(args)
        if entry is None:
            return self.graph.forward(*args)
        try:
            if self._gradients:
                results = list(_Lazily.apply(self, entry, *args))
            else:
                results = entry.run(args)
        except TilesmithError as error:
            self.give_up(str(error))
            return self.graph.forward(*args)
        for view in entry.views:
            owner = args[view.argument] if view.result < 0 else results[view.result]
            results[view.output] = view.of(owner)
        return tuple(results)

    def give_up(self, reason: str) -> None:
        """Leave the graph to PyTorch, for good."""
        if self._given_up:
            return
        self._given_up = True
        self._entries.clear()
        calls = [n for n in self.graph.graph.nodes if "call" in n.op and named(n) != "getitem"]
        self._left(Counter(map(named, calls)), 0, reason)

    def _left(self, left: Mapping[str, int], compiled: int, reason: str) -> None:
        """Report what is left to PyTorch, and say it once."""
        if self._inside is not None:
            outer = self._inside.report
            more = Counter(outer.left)
            more.update(left)
            pieces = max(0, outer.compiled - 1)
            self._inside.report = replace(outer, left=more, compiled=pieces, reason=reason)
        self.report = replace(self.report, left=left, compiled=compiled, reason=reason)
        if not compiled:
            _log.warning("%s runs in PyTorch: %s", self.report.name, reason)
            return
        listed = ", ".join(f"{count} {name}" for name, count in left.items())
        text = "%s leaves to PyTorch: %s; the rest is compiled in %d parts"
        _log.warning(text, self.report.name, listed, compiled)

    # -- compiling -------------------------------------------------------------------------------
    def _current(self, args: Sequence[Any]) -> _Entry | None:
        """What serves these arguments, made now if there is none; None: PyTorch does."""
        if self._given_up:
            return None
        sizes = (*(_size(args[i]) for i in self._varied), *(args[i].item() for i in self._literal))
        key = (*sizes, *(id(args[i]) for i in self._static))  # one graph may serve many layers
        entry = self._entries.get(key)
        if entry is None or not entry.weights.same([args[i] for i in entry.places]):
            entry = self._made(key, args)
        return None if entry is not None and entry.writes_shared(args) else entry

    def _made(self, key: tuple[Any, ...], args: Sequence[Any]) -> _Entry | None:
        with self._lock:
            if key not in self._entries and len(self._entries) >= _SIZES:
                return None
            if self._compiled >= _LIMIT * max(1, len(self._entries)):
                self.give_up("its weights or the numbers it is called with change all the time")
                return None
            self._compiled += 1
            try:
                with torch.no_grad():
                    self._entries[key] = entry = self._entry(args)
            except Exception as error:  # whatever it is, the user's program goes on
                self.give_up(str(error) or type(error).__name__)
                return None
            return entry

    def _entry(self, args: Sequence[Any]) -> _Entry:
        bound = binding.BoundGraph(self.graph, args, self._static, self._literal)
        varied = [i for i in self._varied if isinstance(args[i], torch.Tensor)]
        examples = tuple(_example(args[i]) for i in varied)
        pure = pure_program(exported(bound, examples, name="graph"), "graph")
        random = any(map(is_random, pure.program.graph.nodes))
        signature = pure.signature
        if self._gradients and (random or signature.writes):
            raise ModelError(
                "it needs gradients and writes its arguments or draws random numbers, as in "
                "training; for inference call the module's eval(), or call it under torch.no_grad()"
            )
        runs = self._runs(pure, random)
        symbols = binding.symbols_of(self.graph, args)
        if not all(view.plain for view in self._views):
            raise ModelError("it gives an argument's memory as elements of another kind")
        feeds = tuple(
            binding.number_of(s.name) if s.leaf < 0 else varied[s.leaf] for s in signature.sources
        )
        places = tuple(i for i in self._static if i not in feeds)
        return _Entry(
            runs, signature, _Weights([args[i] for i in places]), places, feeds,
            tuple(view.at(symbols) for view in self._views), self._orders,
        )  # fmt: skip

    def _runs(self, pure: PureProgram, random: bool) -> Executable | Partition:
        """The program compiled whole, or else in parts."""
        reason = "it draws random numbers"
        if not random:
            try:
                asked = Request(pure.model(), **self.asked).resolved()
                executable = build_fixed(asked, self._require_tuned)
                executable = self._tuning.followed(executable, asked)
                self._count(executable)
                return executable
            except TilesmithError as error:
                reason = str(error)
        partition = partitioned(pure.program) if self._inside is None else None
        if partition is None:
            raise ModelError(reason)

        inherited = {**self.asked, "require_tuned": self._require_tuned}

        def part(name: str, graph: GraphModule) -> Callable[..., Any]:
            return CompiledGraph(graph, inherited, self._tuning, partition.parts[name], inside=self)

        replaced(partition, part)
        self._left(partition.stay, len(partition.parts), reason)
        return partition

    def _count(self, executable: Executable) -> None:
        """Report an executable of this graph's, or of a part of it."""
        host = tuple(executable.report.host_nodes)
        self.report = replace(self.report, compiled=1, host=host)
        if self._inside is not None:
            outer = self._inside.report
            self._inside.report = replace(outer, host=(*outer.host, *host))


class _Lazily(torch.autograd.Function):  # type: ignore[misc]
    """A compiled graph whose gradients PyTorch computes, should they be asked for."""

    @staticmethod
    def forward(ctx: Any, graph: CompiledGraph, entry: _Entry, *args: Any) -> tuple[Any, ...]:
        ctx.graph = graph
        ctx.others = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        ctx.save_for_backward(*(arg if isinstance(arg, torch.Tensor) else None for arg in args))
        results = entry.run(args)
        views = {view.output for view in entry.views}
        results = [None if number in views else value for number, value in enumerate(results)]
        output = next(node for node in graph.graph.graph.nodes if node.op == "output")
        wanted = [
            getattr(getattr(n, "meta", {}).get("example_value"), "requires_grad", True)
            for n in output.args[0]
        ]
        ctx.mark_non_differentiable(
            *(r for r, w in zip(results, wanted, strict=True) if torch.is_tensor(r) and not w)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        ctx.graph.give_up("its gradients are asked for, as in training")
        again = torch.is_grad_enabled()  # gradients of gradients
        given = [
            other if saved is None else saved
            for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        asked = [
            i for i, arg in enumerate(given) if torch.is_tensor(arg) and ctx.needs_input_grad[i + 2]
        ]
        with torch.enable_grad():
            if not again:
                given = [a.detach().requires_grad_(i in asked) if torch.is_tensor(a) else a
                         for i, a in enumerate(given)]  # fmt: skip
            results = ctx.graph.graph.forward(*given)
            pairs = [
                (result, gradient)
                for result, gradient in zip(results, gradients, strict=True)
                if gradient is not None and torch.is_tensor(result) and result.requires_grad
            ]
            computed = torch.autograd.grad(
                [r for r, _ in pairs], [given[i] for i in asked], [g for _, g in pairs],
                allow_unused=True, create_graph=again,
            )  # fmt: skip
        by_place = dict(zip(asked, computed, strict=True))
        return (None, None, *(by_place.get(i) for i in range(len(given))))


def _called(graph: GraphModule) -> str:
    """The graph for messages: by what it computes first."""
    first = next((n.name for n in graph.graph.nodes if "call" in n.op), "nothing")
    return f"a graph of {len(graph.graph.nodes)} nodes that begins with '{first}'"

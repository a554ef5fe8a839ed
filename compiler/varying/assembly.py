"""Assembly of a variant: a varying graph, its schedules and kernels become data that can be stored.

Constants are packed here and shared by all variants: what is equal is stored once. Invariants:
bytes that a kernel's argument has are, as a formula, those of the tensor it is given; kernels
without code for varying sizes are computed by their reference, on the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.compiler.backends.backend import Compiled
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.host.nodes import REFERENCE, node_proto
from tilesmith.compiler.onnx.inference.inference import dtype_of
from tilesmith.compiler.recipe.layouts import PLAIN, pack, physical_bytes
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.placement import device_tensors
from tilesmith.compiler.recipe.program import NOWHERE, CodeObject, Place, Report
from tilesmith.compiler.recipe.variants import (
    SIZES,
    AliasPart,
    HostPart,
    KernelPart,
    Part,
    Variant,
    VariantTensor,
    VaryingCheck,
    VaryingInfo,
)
from tilesmith.compiler.settling.options import Option
from tilesmith.compiler.settling.settlement import TRANSFORM, Settled
from tilesmith.compiler.varying.forms import Form
from tilesmith.compiler.varying.sizes.fitting import Fitter
from tilesmith.compiler.varying.sizes.regions import Region
from tilesmith.compiler.varying.sizes.unify import NotAlikeError, VaryingGraph
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, const
from tilesmith.search_space.support.errors import ModelError, VerificationError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Kernels = Mapping[str, "Compiled | None"]
"""Code of each kernel by its output; None where there is none for varying sizes."""


@dataclass
class VariantStore:
    """What all variants share: constants one after the other, code objects; equal ones once."""

    chunks: list[NDArray[np.uint8]] = field(default_factory=list)
    size: int = 0
    known: dict[bytes, Place] = field(default_factory=dict)
    codes: dict[CodeObject, int] = field(default_factory=dict)
    objects: list[CodeObject] = field(default_factory=list)

    def add(self, array: NDArray[Any]) -> Place:
        """The place of an array's bytes."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = hashlib.sha256(flat.data).digest()
        if key not in self.known:
            self.known[key] = Place("constant", self.size)
            padding = -flat.size % ALIGNMENT
            self.chunks += [flat, np.zeros(padding, dtype=np.uint8)]
            self.size += flat.size + padding
        return self.known[key]

    def code(self, code: CodeObject) -> int:
        """The number of a code object."""
        if code not in self.codes:
            self.codes[code] = len(self.objects)
            self.objects.append(code)
        return self.codes[code]

    def joined(self) -> NDArray[np.uint8]:
        """All constants, on a cache line."""
        memory = aligned_bytes(max(ALIGNMENT, self.size))[: self.size]
        if self.chunks:
            np.concatenate(self.chunks, out=memory)
        return memory


@dataclass(frozen=True)
class Lowered:
    """A variant's graph with its schedules.

    Attributes:
        settled: at each point, the first the one that schedules were chosen for.
        graph: all of them as one.
        fitter: finds formulas over the same points.
    """

    settled: tuple[Settled, ...]
    graph: VaryingGraph
    fitter: Fitter


def assembled(
    region: Region, form: Form, lowered: Lowered, kernels: Kernels, store: VariantStore
) -> Variant:
    """Put everything together; `NotAlikeError` where sizes in memory are no formulas."""
    return _Assembler(region, form, lowered, kernels, store).variant()


class _Assembler:
    def __init__(
        self, region: Region, form: Form, lowered: Lowered, kernels: Kernels, store: VariantStore
    ) -> None:
        self.region, self.form, self.kernels, self.store = region, form, kernels, store
        self.lowered = lowered
        self.varying = lowered.graph
        self.graph: Graph = lowered.graph.first
        self.options = lowered.settled[0].options
        self.device = device_tensors(self.graph)
        self.tensors: dict[str, VariantTensor] = {}

    def variant(self) -> Variant:
        graph = self.graph
        mine = [info.name for info in self.form.snapshots[0].graph.inputs]
        prologue = tuple(self._host(n, self.form.snapshots[0].graph) for n in self.form.prologue)
        parts = tuple(self._part(node) for node in graph.nodes)
        outputs = tuple(info.name for info in graph.outputs)
        for name in (*mine, *self.form.given, *outputs):
            self._tensor(name)
        for part in parts:
            self._name(part)
        return Variant(
            self.region, tuple(self.tensors.values()), tuple(mine), outputs,
            tuple(self.form.vectors.values()), tuple(self._known(prologue)), prologue,
            self.form.given, parts, self._report(parts),
        )  # fmt: skip

    # -- tensors ------------------------------------------------------------------------------
    def _name(self, part: Part) -> None:
        if isinstance(part, AliasPart):
            names: Iterable[str] = (name for tie in part.ties for name in tie[:2])
        elif isinstance(part, KernelPart):
            names = (*part.reads, part.writes)
        else:
            names = (*part.reads, *part.writes)
        for name in names:
            self._tensor(name)

    def _tensor(self, name: str) -> None:
        if name in self.tensors:
            return
        inside = self.graph.tensors[name]
        shape = self.varying.shapes[name]
        info = VaryingInfo(name, inside.dtype, shape)
        if name in self.graph.constants and name not in self.device:
            place = self.store.add(self.graph.constants[name])
            self.tensors[name] = VariantTensor(info, const(0), constant=place)
            return
        device = name in self.device
        self.tensors[name] = VariantTensor(info, self._nbytes(name), device=device)

    def _known(self, prologue: Iterable[HostPart]) -> Iterable[VariantTensor]:
        """Constants that the prologue reads."""
        snapshot = self.form.snapshots[0]
        for name in dict.fromkeys(name for part in prologue for name in part.reads):
            value = snapshot.imported.values.get(name)
            if value is not None and name not in self.form.vectors and name not in snapshot.sized:
                shape = tuple(const(extent) for extent in value.shape)
                info = VaryingInfo(name, dtype_of(value), shape)
                yield VariantTensor(info, const(0), constant=self.store.add(value))

    def _nbytes(self, name: str) -> Expr:
        """In memory, in the layout that kernels use."""
        if name not in self.device and name not in self.form.given:
            return const(0)
        seen = []
        for settled in self.lowered.settled:
            info = settled.graph.info(name)
            seen.append(physical_bytes(settled.layouts.get(name, PLAIN), info.dims, info.dtype))
        extents = self.varying.shapes[name] or ()
        whole = const(size_of(self.graph.info(name).dtype))
        for extent in extents:
            whole = whole * extent
        nbytes = self.lowered.fitter.fit(seen, (whole, *extents))
        if nbytes is None:
            raise NotAlikeError(f"the bytes of '{name}' are no formula of the sizes")
        return nbytes

    # -- parts --------------------------------------------------------------------------------
    def _part(self, node: Node) -> Part:
        if node.kind == "host":
            return self._host(node, self.graph)
        if node.kind == "view":
            offset = self.varying.attributes[node.writes[0]].get("offset")
            offset = const(int(node.attribute("offset", 0))) if offset is None else offset
            width = size_of(self.graph.info(node.inputs[0]).dtype)
            return AliasPart(((node.writes[0], node.inputs[0], offset * width),))
        if node.kind == "join":
            total, ties = const(0), []
            for name in node.inputs:
                ties.append((name, node.writes[0], total))
                total = total + self._nbytes(name)
            return AliasPart(tuple(ties))
        code = self.kernels[node.writes[0]]
        assert code is not None, "what has no code is no kernel any more"
        return self._kernel(node, code)

    def _host(self, node: Node, graph: Graph) -> HostPart:
        proto = node_proto(node, dict(graph.opsets)).SerializeToString()
        formulas: Mapping[str, Any] = {}
        if graph is self.graph:
            formulas = self.varying.attributes[node.writes[0]]
        operator = node.operator
        if operator == REFERENCE:
            operator = str(node.attribute("workload")).split()[0]
        return HostPart(
            f"{operator} '{node.name or node.writes[0]}'", operator, proto,
            tuple(formulas.items()), tuple(dict.fromkeys(node.reads)), node.writes,
            node.sources,
        )  # fmt: skip

    def _kernel(self, node: Node, compiled: Compiled) -> KernelPart:
        option = self.options[node]
        workload, config = option.workload, option.config
        assert workload is not None and config is not None
        operands = template_of(workload.operator).operands(workload)
        names = dict(zip((o.name for o in operands), node.inputs, strict=True))
        layouts = dict(zip(names, option.operands, strict=True))
        prepared = self._prepared(workload, compiled, names)
        arguments: list[str | Place] = []
        for parameter in compiled.parameters:
            if parameter == compiled.output:
                arguments.append(node.writes[0])
            elif parameter in prepared:
                arguments.append(self.store.add(prepared[parameter]))
            elif parameter in compiled.unread:
                arguments.append(NOWHERE)
            elif names[parameter] in self.graph.constants:
                shape = next(o.shape for o in operands if o.name == parameter)
                array = self.graph.constants[names[parameter]].reshape(shape)
                arguments.append(self.store.add(pack(layouts[parameter], array)))
            else:
                arguments.append(names[parameter])
        self._check_bytes(node)
        arguments.append(SIZES)
        return KernelPart(
            node.name, self.varying.workloads[node.writes[0]], config.key, option.origin,
            self.store.code(compiled.code), tuple(arguments),
            tuple(n for n in node.reads if n not in self.graph.constants), node.writes[0],
            tuple(self._checks(node, names)), node.sources,
        )  # fmt: skip

    def _check_bytes(self, node: Node) -> None:
        """A kernel reads and writes as much as its tensors have: an error, for it guards memory."""
        position = {n.writes[0]: i for i, n in enumerate(self.graph.nodes)}[node.writes[0]]
        for settled in self.lowered.settled:
            here = settled.graph.nodes[position]
            option: Option = settled.options[here]
            assert here.workload is not None
            template = template_of(here.workload.operator)
            operands = (*template.operands(here.workload), template.output(here.workload))
            layouts = (*option.operands, option.output)
            for operand, name, layout in zip(
                operands, (*here.inputs, here.writes[0]), layouts, strict=True
            ):
                info = settled.graph.info(name)
                wanted = int(np.prod(operand.shape, dtype=np.int64)) * size_of(operand.dtype)
                if info.elements * size_of(info.dtype) != wanted:
                    raise VerificationError(
                        f"'{name}' has {info.nbytes} bytes; its kernel expects {wanted}"
                    )
                del layout

    def _checks(self, node: Node, names: Mapping[str, str]) -> Iterable[VaryingCheck]:
        """Indices that have to be in range before the kernel runs."""
        assert node.workload is not None
        template = template_of(node.workload.operator)
        near = [e for name in node.reads for e in self.varying.shapes[name] or ()]
        seen = []
        for settled in self.lowered.settled:
            here = next(n for n in settled.graph.nodes if n.writes == node.writes)
            assert here.workload is not None
            seen.append(template.index_extents(here.workload))
        where = f"{node.workload.operator} '{node.name}'"
        for operand, name in names.items():
            if operand not in seen[0]:
                continue
            if name in self.graph.constants:
                for checked_axes in seen:
                    if fault := index_fault(self.graph.constants[name], checked_axes[operand]):
                        raise ModelError(f"{where} {fault}")
            axes = zip(*(checked_axes[operand] for checked_axes in seen), strict=True)
            extents = [self.lowered.fitter.fit(axis, near) for axis in axes]
            if any(extent is None for extent in extents):
                raise NotAlikeError(f"an axis that '{name}' is of is no formula of the sizes")
            kept = tuple(extent for extent in extents if extent is not None)
            if name in self.graph.constants:
                if all(extent.constant is not None for extent in kept):
                    continue  # in range at one size, in range at all
                self._tensor(name)
            yield VaryingCheck(where, name, kept)

    def _prepared(
        self, workload: Workload, compiled: Compiled, names: Mapping[str, str]
    ) -> Mapping[str, NDArray[Any]]:
        shapes = {o.name: o.shape for o in template_of(workload.operator).operands(workload)}
        known = {
            operand: self.graph.constants[name].reshape(shapes[operand])
            for operand, name in names.items()
            if workload.is_constant(operand)
        }
        return compiled.prepare(known)

    def _report(self, parts: Sequence[Part]) -> Report:
        kernels = [part for part in parts if isinstance(part, KernelPart)]
        own = [part for part in kernels if part.workload.split()[0] != TRANSFORM]
        hosts = tuple(part.name for part in parts if isinstance(part, HostPart))
        settled = self.lowered.settled[0]
        return Report.of(
            (part.origin for part in own),
            host=len(hosts),
            host_nodes=hosts,
            conversions=len(kernels) - len(own),
            peak_bytes=0,
            constant_bytes=self.store.size,
            estimated_s=settled.seconds,
        )

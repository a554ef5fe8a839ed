"""Assembly of a variant: a varying graph, its schedules and kernels become data that can be stored.

Constants are packed here and shared by all variants: what is equal is stored once. Invariants:
bytes that a kernel's argument has are, as a formula, those of the tensor it is given; kernels
without code for varying sizes are computed by their reference, on the host.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilesmith.compiler.assembly.nodes import NodeAssembler, RecipeStore, host_words
from tilesmith.compiler.backends.backend import Compiled
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.onnx.inference.inference import dtype_of
from tilesmith.compiler.recipe import variants
from tilesmith.compiler.recipe.layouts import PLAIN, physical_bytes
from tilesmith.compiler.recipe.placement import device_tensors
from tilesmith.compiler.settling.settlement import Settled
from tilesmith.compiler.varying.forms import Form
from tilesmith.compiler.varying.sizes.fitting import Fitter
from tilesmith.compiler.varying.sizes.regions import Region
from tilesmith.compiler.varying.sizes.unify import NotAlikeError, VaryingGraph
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, const
from tilesmith.search_space.support.errors import ModelError, VerificationError
from tilesmith.search_space.workloads.template import template_of

Kernels = Mapping[str, "Compiled | None"]
"""Code of each kernel by its output; None where there is none for varying sizes."""


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
    region: Region, form: Form, lowered: Lowered, kernels: Kernels, store: RecipeStore
) -> variants.Variant:
    """Put everything together; `NotAlikeError` where sizes in memory are no formulas."""
    return _Assembler(region, form, lowered, kernels, store).variant()


class _Assembler(NodeAssembler):
    def __init__(
        self, region: Region, form: Form, lowered: Lowered, kernels: Kernels, store: RecipeStore
    ) -> None:
        super().__init__(lowered.settled[0], store)
        self.region, self.form, self.kernels, self.lowered = region, form, kernels, lowered
        self.varying = lowered.graph
        self.device = device_tensors(self.graph)
        self.tensors: dict[str, variants.VariantTensor] = {}

    def variant(self) -> variants.Variant:
        graph = self.graph
        mine = [info.name for info in self.form.snapshots[0].graph.inputs]
        prologue = tuple(self._host(n, self.form.snapshots[0].graph) for n in self.form.prologue)
        parts = tuple(self._part(node) for node in graph.nodes)
        outputs = tuple(info.name for info in graph.outputs)
        for name in (*mine, *self.form.given, *outputs):
            self._tensor(name)
        for name in (name for part in parts for name in variants.touched_by(part)):
            self._tensor(name)
        kernels = [part for part in parts if isinstance(part, variants.KernelPart)]
        hosts = [part for part in parts if isinstance(part, variants.HostPart)]
        return variants.Variant(
            self.region, tuple(self.tensors.values()), tuple(mine), outputs,
            tuple(self.form.vectors.values()), tuple(self._known(prologue)), prologue,
            self.form.given, parts, self.report(kernels, hosts, peak_bytes=0),
        )  # fmt: skip

    # -- tensors ------------------------------------------------------------------------------
    def _tensor(self, name: str) -> None:
        if name in self.tensors:
            return
        inside = self.graph.tensors[name]
        shape = self.varying.shapes[name]
        info = variants.VaryingInfo(name, inside.dtype, shape)
        if name in self.graph.constants and name not in self.device:
            self.tensors[name] = variants.VariantTensor(
                info, const(0), constant=self.constant(name)
            )
            return
        device = name in self.device
        self.tensors[name] = variants.VariantTensor(info, self._nbytes(name), device=device)

    def _known(self, prologue: Iterable[variants.HostPart]) -> Iterable[variants.VariantTensor]:
        """Constants that the prologue reads."""
        snapshot = self.form.snapshots[0]
        for name in dict.fromkeys(name for part in prologue for name in part.reads):
            value = snapshot.imported.values.get(name)
            if value is not None and name not in self.form.vectors and name not in snapshot.sized:
                shape = tuple(const(extent) for extent in value.shape)
                info = variants.VaryingInfo(name, dtype_of(value), shape)
                place = self.store.constants.add((name, PLAIN), value, self.form)
                yield variants.VariantTensor(info, const(0), constant=place)

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
    def _part(self, node: Node) -> variants.Part:
        if node.kind == "host":
            return self._host(node, self.graph)
        if node.kind == "view":
            offset = self.varying.attributes[node.writes[0]].get("offset")
            offset = const(int(node.attribute("offset", 0))) if offset is None else offset
            width = size_of(self.graph.info(node.inputs[0]).dtype)
            return variants.AliasPart(((node.writes[0], node.inputs[0], offset * width),))
        if node.kind == "join":
            total, ties = const(0), []
            for name in node.inputs:
                ties.append((name, node.writes[0], total))
                total = total + self._nbytes(name)
            return variants.AliasPart(tuple(ties))
        code = self.kernels[node.writes[0]]
        assert code is not None, "what has no code is no kernel any more"
        return self._kernel(node, code)

    def _host(self, node: Node, graph: Graph) -> variants.HostPart:
        formulas: Mapping[str, Any] = {}
        if graph is self.graph:
            formulas = self.varying.attributes[node.writes[0]]
        return variants.HostPart(
            *host_words(node, graph), tuple(formulas.items()), tuple(dict.fromkeys(node.reads)),
            node.writes, node.sources,
        )  # fmt: skip

    def _kernel(self, node: Node, compiled: Compiled) -> variants.KernelPart:
        option = self.settled.options[node]
        assert option.config is not None
        self._check_bytes(node)
        arguments = (*self.arguments(node, option, compiled), variants.SIZES)
        return variants.KernelPart(
            node.name, self.varying.workloads[node.writes[0]], option.config.key, option.origin,
            self.store.code(compiled.code), arguments,
            tuple(n for n in node.reads if n not in self.graph.constants), node.writes[0],
            tuple(self._checks(node)), node.sources,
        )  # fmt: skip

    def _check_bytes(self, node: Node) -> None:
        """A kernel reads and writes as much as its tensors have: an error, for it guards memory."""
        position = {n.writes[0]: i for i, n in enumerate(self.graph.nodes)}[node.writes[0]]
        for settled in self.lowered.settled:
            here = settled.graph.nodes[position]
            template = template_of(here.work.operator)
            operands = (*template.operands(here.work), template.output(here.work))
            for operand, name in zip(operands, (*here.inputs, here.writes[0]), strict=True):
                info = settled.graph.info(name)
                wanted = math.prod(operand.shape) * size_of(operand.dtype)
                if info.elements * size_of(info.dtype) != wanted:
                    raise VerificationError(
                        f"'{name}' has {info.nbytes} bytes; its kernel expects {wanted}"
                    )

    def _checks(self, node: Node) -> Iterable[variants.VaryingCheck]:
        """Indices that have to be in range before the kernel runs."""
        template = template_of(node.work.operator)
        names = dict(zip((o.name for o in template.operands(node.work)), node.inputs, strict=True))
        near = [e for name in node.reads for e in self.varying.shapes[name] or ()]
        seen = []
        for settled in self.lowered.settled:
            here = next(n for n in settled.graph.nodes if n.writes == node.writes)
            seen.append(template.index_extents(here.work))
        where = f"{node.work.operator} '{node.name}'"
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
            yield variants.VaryingCheck(where, name, kept)

"""The recipe of a model whose sizes vary, read from its artifact; and which kind an artifact is.

Invariants of what is read: every formula is of the declared sizes, and over their ranges no extent
or size is negative or beyond what a memory may have; every tensor, code object and place that is
named exists.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tilesmith.compiler.artifact.manifest import VARYING_FORMAT
from tilesmith.compiler.artifact.reading import LIMIT, read_sources
from tilesmith.compiler.artifact.steps import StepReader
from tilesmith.compiler.recipe.program import Place, Recipe
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
    VaryingRecipe,
    Vector,
)
from tilesmith.search_space.expressions.dtypes import STORED, size_of
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.sizes import Size, limits, parse_extent
from tilesmith.search_space.support.errors import WorkloadError

_TEXT = 2000
"""Characters of a formula: reading longer ones could take long."""


class Reader(StepReader):
    """Reads an artifact of either kind."""

    def recipe(self) -> Recipe | VaryingRecipe:
        """The whole artifact."""
        return self._varying() if self.version == VARYING_FORMAT else self.fixed()

    def _varying(self) -> VaryingRecipe:
        manifest = self.manifest
        self.sizes = self.region = self._sizes(manifest["sizes"])
        variants = tuple(self._variant(raw) for raw in manifest["variants"])
        if not variants or not self.sizes:
            raise self.damaged("it has no variant, or no sizes")
        self.region = self.sizes
        inputs, outputs = (tuple(map(self._info, manifest[end])) for end in ("inputs", "outputs"))
        return VaryingRecipe(
            *self.head(), self.sizes, inputs, outputs, variants, self.codes, self.weights(),
            self.opsets(), str(manifest["source"]),
        )  # fmt: skip

    def _sizes(self, raw: Any) -> tuple[Size, ...]:
        try:
            sizes = tuple(Size(str(name), low, high) for name, low, high in raw)
        except WorkloadError as error:
            raise self.damaged(str(error)) from error
        if len({size.name for size in sizes}) < len(sizes):
            raise self.damaged("two of its sizes have one name")
        return sizes

    def _variant(self, raw: Mapping[str, Any]) -> Variant:
        self.region = self._sizes(raw["region"])
        declared = {size.name: size for size in self.sizes}
        for size in self.region:
            whole = declared.get(size.name)
            if whole is None or size.low < whole.low or size.high > whole.high:
                raise self.damaged(f"a variant is for {size}, which is not declared")
        if [size.name for size in self.region] != list(declared):
            raise self.damaged("a variant says nothing of some size")
        tensors = tuple(map(self._tensor, raw["tensors"]))
        self.names = {tensor.info.name for tensor in tensors}
        self.placed = {t.info.name for t in tensors if t.device or t.constant is not None}
        vectors = tuple(map(self._vector, raw["vectors"]))
        known = tuple(map(self._tensor, raw["known"]))
        if any(tensor.constant is None for tensor in known):
            raise self.damaged("what follows from the sizes reads no constant")
        prologue = tuple(map(self._host_part, raw["prologue"]))
        parts = tuple(map(self._part, raw["parts"]))
        return Variant(
            self.region, tensors, self._named(raw["inputs"]), self._named(raw["outputs"]),
            vectors, known, prologue, self._named(raw["held"]), parts, self.report(raw["report"]),
        )  # fmt: skip

    def _named(self, names: Iterable[Any]) -> tuple[str, ...]:
        """Names of tensors of the variant."""
        named = tuple(names)
        for name in named:
            if name not in self.names:
                raise self.damaged(f"it names the tensor '{name}'")
        return named

    # -- tensors --------------------------------------------------------------------------------
    def _extent(self, raw: Any, least: int = 0) -> Expr:
        """A number or formula that stays in bounds while the sizes do."""
        if not isinstance(raw, int | str) or isinstance(raw, bool) or len(str(raw)) > _TEXT:
            raise self.damaged(f"{str(raw)[:40]!r} is no extent")
        try:
            extent = parse_extent(str(raw))
            low, high = limits(extent, self.region)
        except WorkloadError as error:
            raise self.damaged(str(error)) from error
        if not (least <= low and high <= LIMIT):
            raise self.damaged(f"the extent {str(raw)[:40]} is {low} to {high}")
        return extent

    def _info(self, raw: Any) -> VaryingInfo:
        name, dtype, shape = raw
        extents = None if shape is None else tuple(map(self._extent, shape))
        return VaryingInfo(str(name), self.dtype(name, dtype), extents)

    def _tensor(self, raw: Mapping[str, Any]) -> VariantTensor:
        info = self._info(raw["info"])
        stored = self.stored(info.name, raw)
        known = info.shape is not None and info.dtype in STORED
        device = raw.get("device") is True
        if device and not known:
            raise self.damaged(f"tensor '{info.name}' has no shape")
        place = None
        if "constant" in raw:
            extents = [self.natural(e.constant, "an extent") for e in info.shape or ()]
            nbytes = math.prod(extents) * size_of(info.dtype) if known else 0
            place = self.place(["constant", raw["constant"]], nbytes)
        return VariantTensor(info, self._extent(raw["nbytes"]), stored, place, device)

    def _vector(self, raw: Any) -> Vector:
        name, dtype, shape, entries = raw
        dims = tuple(self.natural(extent, "an extent", 64) for extent in shape)
        formulas = tuple(self._extent(entry, -LIMIT) for entry in entries)
        if dtype not in STORED or math.prod(dims) != len(formulas):
            raise self.damaged(f"'{name}' is no vector of integers")
        return Vector(str(name), dtype, dims, formulas)

    # -- parts ----------------------------------------------------------------------------------
    def _part(self, raw: Mapping[str, Any]) -> Part:
        if "ties" in raw:
            self._named(name for tie in raw["ties"] for name in tie[:2])
            return AliasPart(
                tuple((str(a), str(b), self._extent(offset)) for a, b, offset in raw["ties"])
            )
        if "kernel" in raw:
            return self._kernel_part(raw)
        part = self._host_part(raw)
        self._named((*part.reads, *part.writes))
        return part

    def _host_part(self, raw: Mapping[str, Any]) -> HostPart:
        reads, writes = (tuple(map(str, raw[key])) for key in ("reads", "writes"))
        formulas = tuple((str(name), self._pattern(value)) for name, value in raw["formulas"])
        return HostPart(
            str(raw["host"]), str(raw["operator"]), self.proto(raw), formulas, reads, writes,
            read_sources(raw),
        )  # fmt: skip

    def _kernel_part(self, raw: Mapping[str, Any]) -> KernelPart:
        name, workload, config, origin, code = self.kernel(raw)
        given = raw["arguments"]
        needs = *self.needs(code, len(given) - 1), 0  # the last are sizes
        arguments = tuple(map(self._argument, given, needs))
        checks = tuple(map(self._check_part, raw["checks"]))
        writes = self._named((raw["writes"],))[0]
        reads = self._named(raw["reads"])
        return KernelPart(
            name, workload, config, origin, code, arguments, reads, writes, checks,
            read_sources(raw),
        )  # fmt: skip

    def _check_part(self, raw: Any) -> VaryingCheck:
        node, indices, extents = raw
        self._named((indices,))
        shape = tuple(map(self._extent, extents))
        if not shape:
            raise self.damaged(f"the indices '{indices}' are of no axis")
        return VaryingCheck(str(node), str(indices), shape)

    def _argument(self, raw: Any, needs: int) -> str | Place:
        if isinstance(raw, str):
            if raw in self.names - self.placed:
                raise self.damaged(f"a kernel's tensor '{raw}' lies in no memory")
            return self._named((raw,))[0]
        if raw == ["held", 0]:
            return SIZES
        if raw[0] not in ("constant", "none"):
            raise self.damaged(f"a kernel's tensor lies at {raw[0]!r}")
        return self.argument(raw, needs)

    def _pattern(self, raw: Any) -> Any:
        if isinstance(raw, str):
            return raw
        if len(raw) == 1:
            return self._extent(raw[0], -LIMIT)
        return tuple(self._pattern(part) for part in raw[1])

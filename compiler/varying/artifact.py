"""The artifact of a model whose sizes vary: one `.tsm` file for all of them.

The members are those of any artifact (`compiler.artifact`); the manifest holds `sizes` and
`variants`, and formulas where others have numbers: `"batch*sequence"`.

Reading trusts nothing here either: every formula is of the declared sizes, and over their ranges no
extent or size is negative or beyond what a memory may have; every tensor, code object and place
that is named exists. Offsets in the arena are not stored at all: they are planned when a size is
first run. Invariant: reading gives back what was written.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilesmith.compiler.artifact.artifact import (
    THREADS,
    VARYING_FORMAT,
    Reader,
    manifest_text,
    read_by,
)
from tilesmith.compiler.artifact.artifact_file import Members, write_archive, write_members
from tilesmith.compiler.artifact.control_format import read_sources, sources_json
from tilesmith.compiler.artifact.steps_format import codes_json
from tilesmith.compiler.graph.value_types import is_value_type
from tilesmith.compiler.recipe.program import Place
from tilesmith.compiler.varying.recipe import (
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
from tilesmith.search_space.expressions.sizes import Size, extent_text, limits, parse_extent
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import origin_named
from tilesmith.search_space.support.errors import WorkloadError

_TEXT = 2000
"""Characters of a formula: reading longer ones could take long."""

_MOST = 1 << 36
"""As for other artifacts: no extent, and no number of bytes, may be larger."""


def write_varying(recipe: VaryingRecipe, path: Path) -> None:
    """Write a recipe; errors as `write_artifact`."""
    write_members(path, *_members(recipe))


def varying_bytes(recipe: VaryingRecipe) -> bytes:
    """What `write_varying` writes."""
    stream = io.BytesIO()
    write_archive(stream, *_members(recipe))
    return stream.getvalue()


def _members(recipe: VaryingRecipe) -> Members:
    protos = [part.proto for variant in recipe.variants for part in _hosts(variant)]
    return manifest_text(_manifest(recipe)), [recipe.constants], recipe.codes, protos


def read_varying(data: bytes) -> VaryingRecipe:
    """What `varying_bytes` wrote; errors as `read_artifact`."""
    return read_by(data, varying_recipe)


def varying_recipe(reader: Reader) -> VaryingRecipe:
    """What `write_varying` wrote; errors as `read_artifact`."""
    return _Reader(reader).recipe()


def _hosts(variant: Variant) -> Iterator[HostPart]:
    yield from variant.prologue
    yield from (part for part in variant.parts if isinstance(part, HostPart))


# -- writing ------------------------------------------------------------------------------------
def _manifest(recipe: VaryingRecipe) -> dict[str, Any]:
    return {
        "format": VARYING_FORMAT,
        "name": recipe.name,
        "source": recipe.source,
        "target": json.loads(recipe.target.to_json()),
        "threads": recipe.threads,
        "sizes": [[size.name, size.low, size.high] for size in recipe.sizes],
        "constant_bytes": int(recipe.constants.size),
        "opsets": [list(pair) for pair in recipe.opsets],
        "inputs": [_info_json(info) for info in recipe.inputs],
        "outputs": [_info_json(info) for info in recipe.outputs],
        **codes_json(recipe.codes),
        "variants": [_variant_json(variant) for variant in recipe.variants],
    }


def _extent_json(extent: Expr) -> int | str:
    return extent.constant if extent.constant is not None else extent_text(extent)


def _info_json(info: VaryingInfo) -> list[Any]:
    shape = None if info.shape is None else [_extent_json(extent) for extent in info.shape]
    return [info.name, info.dtype, shape]


def _variant_json(variant: Variant) -> dict[str, Any]:
    return {
        "region": [[size.name, size.low, size.high] for size in variant.region],
        "tensors": [_tensor_json(tensor) for tensor in variant.tensors],
        "inputs": list(variant.inputs),
        "outputs": list(variant.outputs),
        "vectors": [
            [v.name, v.dtype, list(v.shape), [_extent_json(e) for e in v.entries]]
            for v in variant.vectors
        ],
        "known": [_tensor_json(tensor) for tensor in variant.known],
        "prologue": [_part_json(part) for part in variant.prologue],
        "held": list(variant.held),
        "parts": [_part_json(part) for part in variant.parts],
        "report": {**vars(variant.report), "host_nodes": list(variant.report.host_nodes)},
    }


def _tensor_json(tensor: VariantTensor) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "info": _info_json(tensor.info),
        "nbytes": _extent_json(tensor.nbytes),
    }
    if tensor.stored:
        fields["stored"] = tensor.stored
    if tensor.constant is not None:
        fields["constant"] = tensor.constant.offset
    return {**fields, "device": True} if tensor.device else fields


def _part_json(part: Part) -> dict[str, Any]:
    if isinstance(part, AliasPart):
        return {"ties": [[one, other, _extent_json(offset)] for one, other, offset in part.ties]}
    if isinstance(part, KernelPart):
        return {
            "kernel": part.name, "workload": part.workload, "config": part.config,
            "origin": part.origin, "code": part.code,
            "arguments": [
                a if isinstance(a, str) else [a.region, a.offset] for a in part.arguments
            ],
            "reads": list(part.reads), "writes": part.writes,
            "checks": [
                [c.node, c.indices, [_extent_json(e) for e in c.extents]] for c in part.checks
            ],
            **sources_json(part.sources),
        }  # fmt: skip
    return {
        "host": part.name, "operator": part.operator, "bytes": len(part.proto),
        "formulas": [[name, _pattern_json(value)] for name, value in part.formulas],
        "reads": list(part.reads), "writes": list(part.writes),
        **sources_json(part.sources),
    }  # fmt: skip


def _pattern_json(value: Any) -> Any:
    """A text stays one; a number or formula is in a list of one, a tuple in a list of two."""
    if isinstance(value, Expr):
        return [_extent_json(value)]
    if isinstance(value, tuple):
        return ["tuple", [_pattern_json(part) for part in value]]
    return str(value)


# -- reading ------------------------------------------------------------------------------------
class _Reader:
    """One manifest being read; every check that fails says what was wrong."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.manifest: Mapping[str, Any] = reader.manifest
        if reader.version != VARYING_FORMAT:
            raise reader.damaged("it is of a model of fixed sizes")
        self.sizes = self._sizes(self.manifest["sizes"])
        self.region = self.sizes
        self.codes = reader.codes()
        self.constants = reader.weights()
        self.hosts = 0

    def recipe(self) -> VaryingRecipe:
        manifest, reader = self.manifest, self.reader
        variants = tuple(self._variant(raw) for raw in manifest["variants"])
        self.region = self.sizes
        if not variants or not self.sizes:
            raise reader.damaged("it has no variant, or no sizes")
        return VaryingRecipe(
            str(manifest["name"]), Target.from_json(json.dumps(manifest["target"])),
            max(1, reader.natural(manifest["threads"], "threads", THREADS)), self.sizes,
            tuple(self._info(raw) for raw in manifest["inputs"]),
            tuple(self._info(raw) for raw in manifest["outputs"]), variants, self.codes,
            self.constants, tuple((str(d), int(v)) for d, v in manifest["opsets"]),
            str(manifest["source"]),
        )  # fmt: skip

    def _sizes(self, raw: Any) -> tuple[Size, ...]:
        try:
            sizes = tuple(Size(str(name), low, high) for name, low, high in raw)
        except WorkloadError as error:
            raise self.reader.damaged(str(error)) from error
        if len({size.name for size in sizes}) < len(sizes):
            raise self.reader.damaged("two of its sizes have one name")
        return sizes

    def _variant(self, raw: Mapping[str, Any]) -> Variant:
        self.region = self._sizes(raw["region"])
        declared = {size.name: size for size in self.sizes}
        for size in self.region:
            whole = declared.get(size.name)
            if whole is None or size.low < whole.low or size.high > whole.high:
                raise self.reader.damaged(f"a variant is for {size}, which is not declared")
        if [size.name for size in self.region] != list(declared):
            raise self.reader.damaged("a variant says nothing of some size")
        tensors = tuple(self._tensor(entry) for entry in raw["tensors"])
        self.names = {tensor.info.name for tensor in tensors}
        vectors = tuple(self._vector(entry) for entry in raw["vectors"])
        known = tuple(self._tensor(entry) for entry in raw["known"])
        if any(tensor.constant is None for tensor in known):
            raise self.reader.damaged("what follows from the sizes reads no constant")
        prologue = tuple(self._part(part, named=False) for part in raw["prologue"])
        parts = tuple(self._part(part) for part in raw["parts"])
        return Variant(
            self.region, tensors, self._named(raw["inputs"]), self._named(raw["outputs"]),
            vectors, known, tuple(p for p in prologue if isinstance(p, HostPart)),
            self._named(raw["held"]), parts, self.reader.report(raw["report"]),
        )  # fmt: skip

    def _named(self, names: Any) -> tuple[str, ...]:
        """Names of tensors of the variant."""
        for name in names:
            if name not in self.names:
                raise self.reader.damaged(f"it names the tensor '{name}'")
        return tuple(names)

    def _extent(self, raw: Any, least: int = 0) -> Expr:
        """A number or formula that stays in bounds while the sizes do."""
        if not isinstance(raw, int | str) or isinstance(raw, bool) or len(str(raw)) > _TEXT:
            raise self.reader.damaged(f"{str(raw)[:40]!r} is no extent")
        try:
            extent = parse_extent(str(raw))
            low, high = limits(extent, self.region)
        except WorkloadError as error:
            raise self.reader.damaged(str(error)) from error
        if not (least <= low and high <= _MOST):
            raise self.reader.damaged(f"the extent {str(raw)[:40]} is {low} to {high}")
        return extent

    def _info(self, raw: Any) -> VaryingInfo:
        name, dtype, shape = raw
        if dtype not in (*STORED, "") and not is_value_type(str(dtype)):
            raise self.reader.damaged(f"tensor '{name}' has the dtype {dtype!r}")
        extents = None if shape is None else tuple(self._extent(extent) for extent in shape)
        return VaryingInfo(str(name), dtype, extents)

    def _tensor(self, raw: Mapping[str, Any]) -> VariantTensor:
        info = self._info(raw["info"])
        stored = raw.get("stored", "")
        if stored not in (*STORED, ""):
            raise self.reader.damaged(f"tensor '{info.name}' is stored as {stored!r}")
        known = info.shape is not None and info.dtype in STORED
        device = raw.get("device") is True
        if device and not known:
            raise self.reader.damaged(f"tensor '{info.name}' has no shape")
        place = None
        if "constant" in raw:
            whole = size_of(info.dtype) if known else 0
            for extent in info.shape or ():
                whole *= self.reader.natural(extent.constant, "an extent")
            place = self.reader.place(["constant", raw["constant"]], whole)
        return VariantTensor(info, self._extent(raw["nbytes"]), stored, place, device)

    def _vector(self, raw: Any) -> Vector:
        name, dtype, shape, entries = raw
        dims = tuple(self.reader.natural(extent, "an extent", 64) for extent in shape)
        formulas = tuple(self._extent(entry, -_MOST) for entry in entries)
        count = 1
        for extent in dims:
            count *= extent
        if dtype not in STORED or count != len(formulas):
            raise self.reader.damaged(f"'{name}' is no vector of integers")
        return Vector(str(name), dtype, dims, formulas)

    def _part(self, raw: Mapping[str, Any], *, named: bool = True) -> Part:
        if "ties" in raw:
            self._named(name for tie in raw["ties"] for name in tie[:2])
            return AliasPart(
                tuple((str(a), str(b), self._extent(offset)) for a, b, offset in raw["ties"])
            )
        if "kernel" in raw:
            return self._kernel(raw)
        reader = self.reader
        proto = reader.member(f"host/{self.hosts}.onnx", reader.natural(raw["bytes"], "a size"))
        self.hosts += 1
        reads, writes = ([str(name) for name in raw[key]] for key in ("reads", "writes"))
        if named:
            self._named((*reads, *writes))
        formulas = tuple((str(name), self._pattern(value)) for name, value in raw["formulas"])
        return HostPart(
            str(raw["host"]), str(raw["operator"]), proto, formulas, tuple(reads), tuple(writes),
            read_sources(raw),
        )  # fmt: skip

    def _kernel(self, raw: Mapping[str, Any]) -> KernelPart:
        code, given = raw["code"], raw["arguments"]
        needs = *self.reader.needs(code, self.codes, len(given) - 1), 0  # the last are sizes
        checks = tuple(self._check(check) for check in raw["checks"])
        name, workload, config, origin = (
            str(raw[key]) for key in ("kernel", "workload", "config", "origin")
        )
        return KernelPart(
            name, workload, config, origin_named(origin), code,
            tuple(map(self._argument, given, needs)),
            self._named(raw["reads"]), self._named((raw["writes"],))[0], checks,
            read_sources(raw),
        )  # fmt: skip

    def _check(self, raw: Any) -> VaryingCheck:
        node, indices, extents = raw
        self._named((indices,))
        shape = tuple(self._extent(extent) for extent in extents)
        if not shape:
            raise self.reader.damaged(f"the indices '{indices}' are of no axis")
        return VaryingCheck(str(node), str(indices), shape)

    def _argument(self, raw: Any, needs: int) -> str | Place:
        if isinstance(raw, str):
            return self._named((raw,))[0]
        if raw == ["held", 0]:
            return Place("held", 0)
        if raw[0] not in ("constant", "none"):
            raise self.reader.damaged(f"a kernel's tensor lies at {raw[0]!r}")
        return self.reader.argument(raw, needs)

    def _pattern(self, raw: Any) -> Any:
        if isinstance(raw, str):
            return raw
        if len(raw) == 1:
            return self._extent(raw[0], -_MOST)
        return tuple(self._pattern(part) for part in raw[1])

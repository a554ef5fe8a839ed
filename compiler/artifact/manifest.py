"""A recipe as the manifest of its artifact (`reading`, `steps` and `variants` read it).

One writer serves models of fixed sizes and models whose sizes vary: an extent is a number, or the
text of a formula. What a step leaves out has its default.
"""

import json
from collections.abc import Iterable
from typing import Any

from tilesmith.compiler.recipe import variants
from tilesmith.compiler.recipe.areas import starts_of
from tilesmith.compiler.recipe.program import (
    BranchStep,
    HostStep,
    IndexCheck,
    KernelStep,
    LoopStep,
    MoveStep,
    Place,
    Recipe,
    Report,
    Step,
    TensorRef,
)
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.sizes import Size, extent_text

FORMAT = 3
"""Version of the layout described in `artifact`."""

OLDEST = 2
"""The oldest that is read: before format 3 no model had loops or branches in it, and indices were
checked against one extent."""

VARYING_FORMAT = 4
"""Version of the same layout with formulas of sizes in it."""


def manifest_text(manifest: dict[str, Any]) -> str:
    """A manifest as it is stored."""
    return json.dumps(manifest, indent=1)


def manifest_of(recipe: Recipe | variants.VaryingRecipe) -> dict[str, Any]:
    """What is stored of a recipe beside its weights, code objects and host nodes."""
    fixed = isinstance(recipe, Recipe)
    head = {
        "format": FORMAT if fixed else VARYING_FORMAT,
        "name": recipe.name,
        "source": recipe.source,
        "target": json.loads(recipe.target.to_json()),
        "threads": recipe.threads,
    }
    codes = {
        "codes": [[len(c.code), c.shared_bytes, c.local_bytes] for c in recipe.codes],
        "needs": [list(c.needs) for c in recipe.codes],
    }
    constants = {"constant_bytes": int(recipe.constants.size)}
    opsets = {"opsets": [list(pair) for pair in recipe.opsets]}
    if isinstance(recipe, variants.VaryingRecipe):
        return {
            **head, "sizes": _sizes(recipe.sizes), **constants, **opsets,
            "inputs": [_info(info) for info in recipe.inputs],
            "outputs": [_info(info) for info in recipe.outputs],
            **codes,
            "variants": [_variant(variant) for variant in recipe.variants],
        }  # fmt: skip
    return {
        **head, "chips": recipe.chips, "arena_bytes": recipe.arena_bytes, **constants, **opsets,
        "inputs": [_ref(ref) for ref in recipe.inputs],
        "outputs": [_ref(ref) for ref in recipe.outputs],
        **codes,
        "steps": [_step(step) for step in recipe.steps],
        "report": _report(recipe.report),
        "private": sorted(recipe.private),
        **_updates(recipe),
        **_tensors(recipe),
    }  # fmt: skip


def _place(place: Place) -> list[Any]:
    return [place.region, place.offset]


def _report(report: Report) -> dict[str, Any]:
    return {**vars(report), "host_nodes": list(report.host_nodes)}


def _sources(
    step: KernelStep | HostStep | LoopStep | BranchStep | variants.KernelPart | variants.HostPart,
) -> Any:
    """Names of the model's nodes, where there are any."""
    return {"sources": list(step.sources)} if step.sources else {}


def _kernel(step: KernelStep | variants.KernelPart) -> dict[str, Any]:
    """What steps and parts have in common; an argument is a place, or a tensor's name."""
    arguments: Iterable[str | Place] = step.arguments
    return {
        "kernel": step.name, "workload": step.workload, "config": step.config,
        "origin": step.origin, "code": step.code,
        "arguments": [a if isinstance(a, str) else _place(a) for a in arguments],
    }  # fmt: skip


def _host(step: HostStep | variants.HostPart) -> dict[str, Any]:
    return {"host": step.name, "operator": step.operator, "bytes": len(step.proto)}


# -- models of fixed sizes ------------------------------------------------------------------------
def _ref(ref: TensorRef) -> dict[str, Any]:
    """A tensor that the host or the caller sees."""
    shape = None if ref.info.shape is None else list(ref.info.shape)
    fields = {"name": ref.info.name, "dtype": ref.info.dtype, "shape": shape}
    return {**fields, "place": _place(ref.place), **({"stored": ref.stored} if ref.stored else {})}


def _check(check: IndexCheck) -> dict[str, Any]:
    return {"node": check.node, "indices": _ref(check.indices), "extents": list(check.extents)}


def _step(step: Step) -> dict[str, Any]:
    match step:
        case KernelStep():
            return {
                **_kernel(step),
                **({"checks": [_check(c) for c in step.checks]} if step.checks else {}),
                **({"threads": step.threads} if step.threads else {}),
                **_sources(step),
            }
        case HostStep():
            ends = {"inputs": step.inputs, "outputs": step.outputs}
            refs = {end: [_ref(ref) for ref in given] for end, given in ends.items()}
            return {**_host(step), **refs, **_sources(step)}
        case MoveStep():
            return {
                "move": step.nbytes,
                "source": [*_place(step.source), step.source_step],
                "target": [*_place(step.target), step.target_step],
                "counter": _place(step.counter),
                **({"name": step.name} if step.name else {}),
            }
        case LoopStep():
            places = {"limit": step.limit, "test": step.test, "counter": step.counter}
            return {
                "loop": step.name,
                "trips": step.trips,
                **{key: _place(place) for key, place in places.items()},
                "steps": [_step(inner) for inner in step.steps],
                **_sources(step),
            }
        case BranchStep():
            branches = [[_step(inner) for inner in branch] for branch in step.steps]
            head = {"branch": step.name, "test": _place(step.test)}
            return {**head, "steps": branches, **_sources(step)}


def _updates(recipe: Recipe) -> dict[str, Any]:
    """Pairs of names, and the size of the callers' region; nothing where there are none."""
    if not recipe.updates:
        return {}
    sizes = [ref.info.nbytes for ref in recipe.inputs if ref.place.region == "caller"]
    pairs = [[update.input, update.output] for update in recipe.updates]
    return {"updates": pairs, "caller_bytes": starts_of(sizes)[-1]}


def _tensors(recipe: Recipe) -> dict[str, Any]:
    rows = [
        [t.name, t.dtype, None if t.shape is None else list(t.shape), *_place(t.place), t.layout,
         t.step]
        for t in recipe.tensors
    ]  # fmt: skip
    return {"tensors": rows} if rows else {}


# -- models whose sizes vary ----------------------------------------------------------------------
def _sizes(sizes: Iterable[Size]) -> list[Any]:
    return [[size.name, size.low, size.high] for size in sizes]


def _extent(extent: Expr) -> int | str:
    return extent.constant if extent.constant is not None else extent_text(extent)


def _extents(extents: Iterable[Expr]) -> list[int | str]:
    return [_extent(extent) for extent in extents]


def _info(info: variants.VaryingInfo) -> list[Any]:
    return [info.name, info.dtype, None if info.shape is None else _extents(info.shape)]


def _tensor(tensor: variants.VariantTensor) -> dict[str, Any]:
    fields = {"info": _info(tensor.info), "nbytes": _extent(tensor.nbytes)}
    stored = {"stored": tensor.stored} if tensor.stored else {}
    place = {} if tensor.constant is None else {"constant": tensor.constant.offset}
    return {**fields, **stored, **place, **({"device": True} if tensor.device else {})}


def _variant(variant: variants.Variant) -> dict[str, Any]:
    return {
        "region": _sizes(variant.region),
        "tensors": [_tensor(tensor) for tensor in variant.tensors],
        "inputs": list(variant.inputs),
        "outputs": list(variant.outputs),
        "vectors": [[v.name, v.dtype, list(v.shape), _extents(v.entries)] for v in variant.vectors],
        "known": [_tensor(tensor) for tensor in variant.known],
        "prologue": [_part(part) for part in variant.prologue],
        "held": list(variant.held),
        "parts": [_part(part) for part in variant.parts],
        "report": _report(variant.report),
    }


def _part(part: variants.Part) -> dict[str, Any]:
    match part:
        case variants.AliasPart():
            return {"ties": [[one, other, _extent(offset)] for one, other, offset in part.ties]}
        case variants.KernelPart():
            checks = [[c.node, c.indices, _extents(c.extents)] for c in part.checks]
            reads = {"reads": list(part.reads), "writes": part.writes, "checks": checks}
            return {**_kernel(part), **reads, **_sources(part)}
        case variants.HostPart():
            formulas = [[name, _pattern(value)] for name, value in part.formulas]
            reads = {"reads": list(part.reads), "writes": list(part.writes)}
            return {**_host(part), "formulas": formulas, **reads, **_sources(part)}


def _pattern(value: Any) -> Any:
    """A text stays one; a number or formula is in a list of one, a tuple in a list of two."""
    if isinstance(value, Expr):
        return [_extent(value)]
    if isinstance(value, tuple):
        return ["tuple", [_pattern(part) for part in value]]
    return str(value)

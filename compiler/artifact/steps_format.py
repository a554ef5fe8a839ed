"""Steps in an artifact's manifest, as they are written (`compiler.artifact` reads them)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilesmith.compiler.artifact.control_format import control_json, sources_json
from tilesmith.compiler.recipe.program import (
    CodeObject,
    HostStep,
    IndexCheck,
    KernelStep,
    Step,
    TensorRef,
)


def ref_json(ref: TensorRef) -> dict[str, Any]:
    """A tensor that the host or the caller sees."""
    shape = None if ref.info.shape is None else list(ref.info.shape)
    place = [ref.place.region, ref.place.offset]
    fields = {"name": ref.info.name, "dtype": ref.info.dtype, "shape": shape, "place": place}
    return {**fields, "stored": ref.stored} if ref.stored else fields


def step_json(step: Step) -> dict[str, Any]:
    """A step of any kind; what it leaves out has its default."""
    if isinstance(step, KernelStep):
        places = [[place.region, place.offset] for place in step.arguments]
        return {
            "kernel": step.name, "workload": step.workload, "config": step.config,
            "origin": step.origin, "code": step.code, "arguments": places,
            **({"checks": [_check_json(c) for c in step.checks]} if step.checks else {}),
            **({"threads": step.threads} if step.threads else {}),
            **sources_json(step.sources),
        }  # fmt: skip
    if not isinstance(step, HostStep):
        return control_json(step, step_json)
    return {
        "host": step.name,
        "operator": step.operator,
        "bytes": len(step.proto),
        "inputs": [ref_json(ref) for ref in step.inputs],
        "outputs": [ref_json(ref) for ref in step.outputs],
        **sources_json(step.sources),
    }


def _check_json(check: IndexCheck) -> dict[str, Any]:
    indices, extents = ref_json(check.indices), list(check.extents)
    return {"node": check.node, "indices": indices, "extents": extents}


def codes_json(codes: Iterable[CodeObject]) -> dict[str, Any]:
    """What a manifest says of code objects."""
    return {
        "codes": [[len(c.code), c.shared_bytes, c.local_bytes] for c in codes],
        "needs": [list(c.needs) for c in codes],
    }

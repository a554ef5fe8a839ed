"""A plan of precisions as a file that people read and edit, and `--plan` takes back.

    {"format": "tilesmith precisions", "version": 1, "model": "resnet50.onnx", "budget": 0.01,
     "layers": {"conv1": {"precision": "int8", "operator": "Conv", "why": "..."}, ...}}

Only a layer's `precision` is read back (a name alone will do in its place); layers that are left
out stay in fp32.
"""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilesmith.capabilities.quantisation.precisions.mixed import FP32, PRECISIONS, MixedModel
from tilesmith.capabilities.quantisation.precisions.report import PrecisionReport
from tilesmith.search_space.support.errors import InputError

FORMAT, VERSION = "tilesmith precisions", 1


def plan_text(report: PrecisionReport, model: str) -> str:
    """The chosen plan as the text of a file."""
    layers = {layer.node: layer.to_json() for layer in report.layers}
    for layer in layers.values():
        del layer["node"]
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "minimise": report.minimise,
        "budget": report.budget,
        "layers": layers,
    }
    return json.dumps(whole, indent=1) + "\n"


def read_plan(plan: Mapping[str, str] | str | Path, mixed: MixedModel) -> dict[str, str]:
    """Precisions by layer, those in fp32 left out.

    Raises:
        InputError: the file cannot be read, is no plan or a newer one's, or names a layer or a
            precision that the model does not have.
    """
    where = "the plan" if isinstance(plan, Mapping) else f"'{plan}'"
    given = plan if isinstance(plan, Mapping) else _layers(Path(plan))
    by_name = {layer.node: layer for layer in mixed.layers}
    chosen: dict[str, str] = {}
    for node, precision in given.items():
        if node not in by_name:
            near = difflib.get_close_matches(node, by_name, n=1, cutoff=0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InputError(f"{where} names '{node}', which is no layer of this model{hint}")
        allowed = mixed.precisions(by_name[node])
        if precision not in allowed:
            known = "" if precision in PRECISIONS else "no precision; "
            raise InputError(
                f"{where} has '{node}' in '{precision}', {known}it may be in {', '.join(allowed)}"
            )
        if precision != FP32:
            chosen[node] = precision
    return chosen


def _layers(path: Path) -> dict[str, str]:
    try:
        whole: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the plan '{path}' cannot be read: {error}") from error
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise InputError(
            f"'{path}' is no plan of precisions; 'tilesmith quantize --plan-out' writes them"
        )
    version, layers = whole.get("version"), whole.get("layers")
    if not isinstance(version, int) or version > VERSION:
        raise InputError(
            f"the plan '{path}' is of version {version}; this Tilesmith reads up to {VERSION}"
        )
    if not isinstance(layers, dict):
        raise InputError(f"the plan '{path}' has no 'layers': an object of layers by name")
    return {name: _precision(layer, name, path) for name, layer in layers.items()}


def _precision(layer: Any, name: str, path: Path) -> str:
    precision = layer.get("precision") if isinstance(layer, dict) else layer
    if not isinstance(precision, str):
        raise InputError(
            f"the plan '{path}' gives '{name}' no precision; {', '.join(PRECISIONS)} are expected"
        )
    return precision

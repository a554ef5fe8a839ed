"""Weights of a reduced model that it computes itself, so that what is sent is small.

    w: 4 MiB of numbers      becomes      w = Reshape(Sin(Range(0, n) * frequency) * size, shape)

with the shape and the root mean square of the weight: constants are folded before anything else is
done with a model, so that kernels see a weight as before. A weight whose own numbers matter stays.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilesmith.capabilities.fault_finding.bisection.reduction import Shows, Small
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import TilesmithError

LARGE = 4096
"""Bytes above which a weight is worth it."""

_FREQUENCIES = 12.9898


def with_seeded_weights(small: Small, shows: Shows, seconds: float) -> Small:
    """The same fault with as many large weights computed as still show it; the largest first."""
    end = time.monotonic() + seconds
    weights = [w for w in small.proto.graph.initializer if _is_large(w)]
    for weight in sorted(weights, key=lambda w: -math.prod(w.dims)):
        if time.monotonic() > end:
            break
        changed = _seeded(small, weight.name, len(small.seeded))
        if changed is not None and shows(changed):
            small = changed
    return small


def _is_large(weight: onnx.TensorProto) -> bool:
    return weight.data_type == onnx.TensorProto.FLOAT and 4 * math.prod(weight.dims) > LARGE


def _seeded(small: Small, name: str, number: int) -> Small | None:
    """A model with one weight computed, and what it should give; None where that is not known."""
    proto = onnx.ModelProto()
    proto.CopyFrom(small.proto)
    graph = proto.graph
    weight = next(w for w in graph.initializer if w.name == name)
    array = numpy_helper.to_array(weight)
    size = float(np.sqrt(np.mean(np.square(array.astype(np.float64))))) * math.sqrt(2)
    constants = {
        "from": np.float32(0), "to": np.float32(array.size), "by": np.float32(1),
        "frequency": np.float32(_FREQUENCIES + number), "size": np.float32(size),
        "shape": np.array(array.shape, np.int64),
    }  # fmt: skip
    own = {what: f"{name}.{what}" for what in (*constants, "places", "angles", "sines", "flat")}
    range_nodes = [
        helper.make_node("Range", [own["from"], own["to"], own["by"]], [own["places"]]),
        helper.make_node("Mul", [own["places"], own["frequency"]], [own["angles"]]),
        helper.make_node("Sin", [own["angles"]], [own["sines"]]),
        helper.make_node("Mul", [own["sines"], own["size"]], [own["flat"]]),
        helper.make_node("Reshape", [own["flat"], own["shape"]], [name]),
    ]
    kept = [w for w in graph.initializer if w.name != name]
    kept += [numpy_helper.from_array(np.asarray(v), own[what]) for what, v in constants.items()]
    nodes = [*range_nodes, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
    wanted = _values(proto, small)
    if wanted is None:
        return None
    return replace(small, proto=proto, wanted=wanted, seeded=(*small.seeded, name))


def _values(proto: onnx.ModelProto, small: Small) -> dict[str, Any] | None:
    try:
        values = Evaluator(import_model(proto)).values(small.inputs, small.wanted)
    except TilesmithError:
        return None
    finite = all(np.isfinite(np.asarray(v, np.float64)).all() for v in values.values())
    return {name: np.asarray(values[name]) for name in small.wanted} if finite else None

"""What a lower precision loses at one tensor, beside what it has to: R of what arises there.

    local R = ||ours - exact here|| / ||rounded here - exact here||

`exact here` is computed by the reference in float32 from the compiled model's own tensors before
it, with inputs and weights as the precision has them; `rounded here` likewise, each tensor on the
way rounded. What came before has no part in either, so that a right kernel has 1 (less where it
rounds less often), however deep it stands: measured 1.000 on convolutional networks and an encoder
in both precisions. A wrong rounding mode has 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilesmith.compiler.comparison.cones import nearest
from tilesmith.compiler.comparison.evaluation import Evaluator
from tilesmith.compiler.comparison.ratios import FEW, LIKELY, UPCAST, ratio, rounding_to
from tilesmith.compiler.comparison.report import Verdict
from tilesmith.compiler.graph import Graph
from tilesmith.search_space.dtypes import to_numpy
from tilesmith.search_space.errors import JobError

HERE_FINE, HERE_LIKELY = 1.2, 1.5
"""Local R up to which nothing is wrong, and from which on something is."""

_NARROW = [to_numpy(name) for name in ("float32", "float16", "bfloat16")]


def local_ratios(
    graph: Graph,
    inputs: Mapping[str, Any],
    found: Mapping[str, Any],
    dtype: str,
    names: Iterable[str],
) -> dict[str, float]:
    """Local R of tensors, by name; those that the reference does not compute are left out.

    A kernel may have inputs and weights as the model has them, or rounded: what is clearly more
    exact than the precision with them as they are is judged so, and so is what has a factor that
    may be folded into weights, which then are rounded as others.

    Args:
        graph: the model as imported.
        found: the compiled model's tensors.
        dtype: of the precision.
    """
    rounded = rounding_to(dtype)
    whole = _ratios(graph, inputs, found, dtype, list(names))
    narrow = {name: rounded(name, value) for name, value in inputs.items()}
    graph = graph.with_(constants={n: rounded(n, v) for n, v in graph.constants.items()})
    found_narrow = _ratios(graph, narrow, found, dtype, list(whole))
    scaling = (n for n in graph.nodes if n.is_onnx("BatchNormalization", "Mul", "Div"))
    scaled = {name for node in scaling for name in node.writes}
    ratios = {}
    for name, here in whole.items():
        other = found_narrow.get(name, here)
        folded = bool(scaled & _between(graph, name, {*found, *inputs}))
        ratios[name] = here if here < UPCAST else min(here, other) if folded else other
    return ratios


def _between(graph: Graph, name: str, among: Collection[str]) -> set[str]:
    """A tensor, and those it is computed from that are not `among` others."""
    waiting, seen = [name], {name}
    while waiting:
        node = graph.producers.get(waiting.pop())
        for source in () if node is None else node.reads:
            if source not in among and source not in seen:
                seen.add(source)
                waiting.append(source)
    return seen


def _ratios(
    graph: Graph,
    inputs: Mapping[str, Any],
    found: Mapping[str, Any],
    dtype: str,
    names: Sequence[str],
) -> dict[str, float]:
    rounded = rounding_to(dtype)
    held = dict(inputs)
    for name, value in found.items():
        narrow = isinstance(value, np.ndarray) and value.dtype in _NARROW
        held[name] = value.astype(np.float32) if narrow else value
    exact, narrow_too = Evaluator(graph), Evaluator(graph, rounded)
    ratios: dict[str, float] = {}
    for name in names:
        ours = held[name]
        if not isinstance(ours, np.ndarray) or ours.dtype != np.float32:
            continue
        given = {source: held[source] for source in nearest(graph, name, held.keys())}
        try:
            wanted, least = (
                np.asarray(one.between(given, [name])[name]) for one in (exact, narrow_too)
            )
        except JobError:
            continue
        if wanted.shape == ours.shape and wanted.dtype.kind == "f":
            ratios[name] = ratio(ours, wanted, least, dtype)
    return ratios


def verdict_here(verdict: Verdict, here: float, elements: int) -> Verdict:
    """What a tensor is, by its R (`verdict`) and by what of it arises there."""
    if elements < FEW:
        wrong: Verdict = "likely" if here >= LIKELY else "ok"
    elif here > LIKELY:
        wrong = "missing"
    elif here > HERE_LIKELY:
        wrong = "likely"
    else:
        wrong = "possible" if here > HERE_FINE else "ok"
    if wrong != "ok":
        return wrong
    return verdict if verdict in ("ok", "upcast") else "inherited"

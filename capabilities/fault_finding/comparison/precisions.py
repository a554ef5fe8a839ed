"""One comparison of a model in a lower precision, by the ratio R, from inputs to a report."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.comparison.compare import (
    Compared,
    first_nan,
    is_numeric,
    replaced_by,
    unlike_whole,
)
from tilesmith.capabilities.fault_finding.comparison.tensors import Judge, row_of
from tilesmith.capabilities.fault_finding.references.cones import parents
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.references.quantised import (
    Scale,
    as_numbers,
    scales_of,
    without_rounding,
)
from tilesmith.capabilities.fault_finding.rounding.local_bytes import byte_ratios
from tilesmith.capabilities.fault_finding.rounding.local_ratios import local_ratios, verdict_here
from tilesmith.capabilities.fault_finding.rounding.ratios import (
    left_range,
    limited,
    ratio,
    rounding_to,
    suspect_of,
    verdict_of,
    with_deviations,
)
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.report import (
    ComparisonReport,
    Replacement,
    TensorRow,
)
from tilesmith.capabilities.fault_finding.stepping.steps import run_steps
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.numerics.precision import PRECISIONS
from tilesmith.compiler.passes.narrow_kernels import largest
from tilesmith.compiler.recipe.program import LoopStep, Recipe, kernels_of
from tilesmith.search_space.support.errors import InputError

Arrays = Mapping[str, NDArray[Any]]
INT8 = "int8"


@dataclass(frozen=True)
class _Precision:
    """A lower precision and what a model's tensors are compared with in it.

    Attributes:
        name: "bf16", "fp16" or "int8".
        dtype: its element type.
        exact: the tensors in fp32, by name.
        narrow: those of the reference in the precision, and what may be put in place of ours.
        scales: what tensors of bytes stand for.
    """

    name: str
    dtype: str
    exact: Arrays
    narrow: Arrays
    scales: Mapping[str, Scale] = field(default_factory=dict)

    def within(self, name: str, tensor: NDArray[Any]) -> NDArray[Any]:
        """Our tensor, with infinities that stand for the largest numbers as these: masks hold the
        lowest number of float32, which rounds to an infinity of a narrower type."""
        exact = self.exact[name]
        if exact.dtype.kind != "f" or exact.dtype == np.float64:
            return tensor
        wide = np.asarray(tensor, np.float32)
        same = np.isinf(wide) & (np.sign(wide) == np.sign(exact))
        return np.where(same & (np.abs(exact) >= largest(self.dtype)), exact, wide)

    def numbers(self, values: Arrays) -> dict[str, NDArray[Any]]:
        """Tensors as numbers, whatever they lie in memory as."""
        return as_numbers(values, self.scales)


def precision_of(
    name: str, graph: Graph, inputs: Arrays, exact: Arrays, names: Iterable[str]
) -> _Precision:
    """A precision of a model, by its reference.

    Args:
        exact: tensors of the model in fp32; of int8 they follow from the graph.

    Raises:
        InputError: int8 of a model without pairs of quantisation and its opposite.
        JobError: the reference cannot be computed.
    """
    names = list(names)
    if name != INT8:
        dtype = PRECISIONS[name]
        narrow = Evaluator(graph, rounding_to(dtype)).values(inputs, names)
        kept = {n: _limited(value, dtype) for n, value in exact.items()}
        return _Precision(name, dtype, kept, narrow)
    scales = scales_of(graph)
    if not scales:
        raise InputError(
            f"'{graph.title}' has no QuantizeLinear and DequantizeLinear, between which int8 "
            "rounds; compare it without --precision"
        )
    sources = {n: scales[n].source if n in scales else n for n in names}
    values = without_rounding(graph).values(inputs, sources.values())
    wide = {
        n: scales[n].within(values[source]) if n in scales else values[source]
        for n, source in sources.items()
    }
    return _Precision(name, INT8, wide, Evaluator(graph).values(inputs, names), scales)


def _limited(value: Any, dtype: str) -> Any:
    floating = isinstance(value, np.ndarray) and value.dtype == np.float32
    return limited(value, dtype) if floating else value


def compare_ratios(compared: Compared, precision: _Precision) -> ComparisonReport:
    """Every tensor by R."""
    recipe, graph = compared.recipe, compared.graph
    held = [t for t in compared.tensors() if is_numeric(precision.exact.get(t.name))]
    names = {tensor.name for tensor in held}
    seen = run_steps(compared.executable, compared.inputs, names)
    tensors, narrow = precision.numbers(seen.tensors), precision.numbers(precision.narrow)
    rows = []
    for tensor in held:
        name = tensor.name
        ours = tensors[name] if name in precision.scales else precision.within(name, tensors[name])
        row = row_of(tensor, recipe, graph, ours, precision.exact[name])
        rows.append(_with_ratio(row, ours, narrow[name], precision))
    notes: tuple[str, ...] = ()
    if precision.name == INT8:
        rows = arising_in_bytes(rows, compared, seen.tensors, precision)
    else:
        judge = Judge(graph, compared.inputs, tensors, precision.exact, compared.tolerance)
        rows, notes = decided(rows, judge, narrow)
        rows = arising(rows, compared, tensors, precision)
        beyond = left_range(rows, tensors, precision.exact, precision.dtype)
        notes += (beyond,) if beyond else ()
    rows = with_deviations(rows, parents(graph, [row.name for row in rows]))
    suspect = suspect_of(rows)
    bad = any(row.name == suspect and row.verdict in ("likely", "missing") for row in rows)
    report = ComparisonReport(
        recipe.name, recipe.target.name, precision.name, compared.reference, compared.tolerance,
        tuple(rows), suspect if bad else None, first_nan(rows), suspect, notes=notes,
    )  # fmt: skip
    return replace(
        report,
        replacement=replaced_ratios(compared, precision, suspect),
        whole=unlike_whole(compared, seen.outputs),
    )


def decided(
    rows: list[TensorRow], judge: Judge, narrow: Arrays
) -> tuple[list[TensorRow], tuple[str, ...]]:
    """Rows of whole numbers and flags that are not the reference's: decisions (what is kept, the
    largest, larger or not), which a rounding may turn. Such a row is inherited if the reference
    decides the same of our numbers, or of its own in the precision; a sentence on the first."""
    decisions: list[TensorRow] = []
    notes: list[str] = []
    for row in rows:
        ours, wanted = judge.ours[row.name], judge.wanted[row.name]
        if row.ratio is None and not np.array_equal(ours, wanted):
            same = np.array_equal(ours, narrow[row.name])
            row = replace(row, verdict="inherited") if same else judge.judged(row)
            if row.verdict == "inherited" and not notes:
                notes.append(
                    f"{row.operator} '{row.node}' decides otherwise than in fp32, and as the "
                    "reference does of these numbers: what it is given lies so close together that "
                    "rounding turns the decision"
                )
            elif row.verdict == "bad":
                row = replace(row, verdict="likely")
        decisions.append(row)
    return decisions, tuple(notes)


def arising(
    rows: list[TensorRow], compared: Compared, tensors: Arrays, precision: _Precision
) -> list[TensorRow]:
    """Rows judged by what arises at each tensor, too; random numbers are left as they are."""
    names = [row.name for row in rows if row.ratio is not None and row.name not in compared.drawn]
    here = local_ratios(compared.graph, compared.inputs, tensors, precision.dtype, names)
    rounding = _roundings(compared.recipe, {row.node for row in rows})
    return [
        replace(
            row,
            local_ratio=here[row.name],
            verdict=verdict_here(
                row.verdict, here[row.name] / rounding[row.node], math.prod(row.shape)
            ),
        )
        if row.name in here
        else row
        for row in rows
    ]


def arising_in_bytes(
    rows: list[TensorRow], compared: Compared, tensors: Arrays, precision: _Precision
) -> list[TensorRow]:
    """Rows of a quantised model judged by what arises at each tensor: bytes by their rounding,
    all by whether the reference makes the same of what comes before, as they lie in memory."""
    judge = Judge(compared.graph, compared.inputs, tensors, precision.narrow, compared.tolerance)
    here = byte_ratios(compared.graph, compared.inputs, tensors, [row.name for row in rows])
    judged = []
    for row in rows:
        own = judge.judged(row)
        elements, local = math.prod(row.shape), here.get(row.name)
        verdict = verdict_here(row.verdict, 1.0 if local is None else local, elements)
        if own.verdict == "bad" and verdict not in ("likely", "missing"):
            verdict = "likely"
        judged.append(replace(row, verdict=verdict, local=own.local, local_ratio=local))
    return judged


def _roundings(recipe: Recipe, nodes: set[str]) -> dict[str, float]:
    """How many times as much what does a node's work may lose: several kernels, and one that a loop
    runs again and again, round in between, where the reference of the node rounds its result
    alone."""
    counts = dict.fromkeys(nodes, 0)
    for step in recipe.steps:
        for name in nodes.intersection(getattr(step, "sources", ())):
            again = 2 if isinstance(step, LoopStep) else 1
            counts[name] += again * max(1, len(list(kernels_of((step,)))))
    return {name: 2.0 if times > 1 else 1.0 for name, times in counts.items()}


def _with_ratio(
    row: TensorRow, tensor: NDArray[Any], narrow: NDArray[Any], precision: _Precision
) -> TensorRow:
    exact = precision.exact[row.name]
    if exact.dtype.kind != "f" or exact.dtype == np.float64:  # which stays as it is
        return row
    own = ratio(tensor, exact, narrow, precision.dtype)
    return replace(row, ratio=own, verdict=verdict_of(own, exact.size))


def replaced_ratios(
    compared: Compared, precision: _Precision, suspect: str | None
) -> Replacement | None:
    """What becomes of the outputs' R with the reference's tensor in place."""
    name = compared.replaced or suspect or ""
    if not name:
        return None
    before, after = (
        precision.numbers(part) for part in replaced_by(compared, precision.narrow, name)
    )
    narrow = precision.numbers(precision.narrow)

    def errors(tensors: Arrays) -> dict[str, float]:
        return {n: tensor_error(v, precision.exact[n]).max_rel for n, v in tensors.items()}

    def ratios(tensors: Arrays) -> dict[str, float]:
        return {
            n: ratio(v, precision.exact[n], narrow[n], precision.dtype)
            for n, v in tensors.items()
            if precision.exact[n].dtype.kind == "f"
        }

    return Replacement(name, errors(before), errors(after), ratios(before), ratios(after))

"""A choice of precisions as tables for a terminal: the front, then the layers."""

import math
from collections import Counter

from tilesmith.capabilities.quantisation.precisions.report import PrecisionReport
from tilesmith.display.output import table

_SHOWN = 30
"""Layers in the table, those that take most first; the plan's file has all."""


def text(report: PrecisionReport, output: str) -> str:
    """The report in words."""
    lines = [_front(report), "", _layers(report)]
    if len(report.layers) > _SHOWN:
        lines.append(f"... and {len(report.layers) - _SHOWN} layers more (--plan-out, --json)")
    counts = Counter(layer.precision for layer in report.layers)
    named = ", ".join(f"{count} in {name}" for name, count in counts.most_common())
    lines.append(f"{output}: {len(report.layers)} layers, {named}")
    lines.append(
        f"  {report.ms:.4g} ms, fp32 {report.fp32_ms:.4g} ms in turns "
        f"({report.ms / report.fp32_ms:.2f}); weights of layers {report.bytes / 1e6:.4g} MB, fp32 "
        f"{report.fp32_bytes / 1e6:.4g} MB"
    )
    lines.append(
        f"  error {report.error:.3g} on {report.samples} samples, {report.held_out:.3g} on "
        f"{report.held_out_samples} held out"
        + (f"; {report.budget:g} allowed" if math.isfinite(report.budget) else "")
    )
    if not report.plan:
        lines.append("  no plan within the budget is better than fp32: the model stays as it is")
    lines.append(
        f"  {report.kernels_measured} kernels were timed, {report.kernels_known} were known"
    )
    return "\n".join(lines)


def _front(report: PrecisionReport) -> str:
    rows = [
        (
            f"{point.error:.4g}",
            f"{point.held_out:.4g}",
            f"{point.ms:.4g}",
            f"{point.predicted_s * 1e3:.4g}",
            f"{point.predicted_error:.4g}",
            f"{point.gap:.2%}",
            " ".join(f"{name}:{count}" for name, count in sorted(point.layers.items())),
            point.verdict,
        )
        for point in report.front
    ]
    header = ("error", "held out", "ms", "foretold ms", "foretold error", "gap", "layers", "")
    return table(header, [("0", "0", f"{report.fp32_ms:.4g}", "", "", "", "fp32", ""), *rows])


def _layers(report: PrecisionReport) -> str:
    names = [
        n for n in ("fp32", "bf16", "int8", "int4") if any(n in la.bytes for la in report.layers)
    ]
    timed = any(layer.us for layer in report.layers)
    shown = sorted(report.layers, key=lambda la: -(la.us or la.bytes)["fp32"])[:_SHOWN]
    rows = []
    for layer in shown:
        costs = layer.us or layer.bytes
        cells = [f"{costs[n]:.4g}" if n in costs else "" for n in names]
        errors = [f"{layer.errors[n]:.2g}" if n in layer.errors else "" for n in names[1:]]
        rows.append((layer.node, layer.precision, *cells, *errors, layer.why))
    unit = "us" if timed else "bytes"
    header = ("layer", "in", *(f"{n} {unit}" for n in names), *(f"error {n}" for n in names[1:]))
    return table((*header, "why"), rows)

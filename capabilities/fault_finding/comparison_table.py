"""What `tilesmith compare` prints: one line a tensor, and sentences on what to look at first."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tilesmith.display.output import table
from tilesmith.display.printable import printable

if TYPE_CHECKING:
    from tilesmith.capabilities.fault_finding.stepping.report import ComparisonReport, TensorRow

SORTS = ("order", "worst")
_ROWS = 40
"""Rows that are printed unless all are asked for."""


def comparison_text(report: "ComparisonReport", sort: str = "order", rows: int = _ROWS) -> str:
    """The table and what follows from it, at most 80 columns wide.

    Args:
        sort: "order": as the model computes them; "worst": largest error first.
        rows: how many at most (0: all); of a model with more, the most telling ones.
    """
    lines = [_table(report, _chosen(report, sort, rows))]
    if 0 < rows < len(report.tensors):
        lines.append(f"{rows} of {len(report.tensors)} tensors; --all shows every one")
    # what is indented stays so
    said = [s[: len(s) - len(s.lstrip())] + printable(s) for s in _sentences(report)]
    return "\n".join([*lines, "", *said])


def _chosen(report: "ComparisonReport", sort: str, rows: int) -> "list[TensorRow]":
    by_error = sorted(report.tensors, key=_badness, reverse=True)
    kept = by_error if rows == 0 else by_error[:rows]
    if sort == "worst":
        return kept
    names = {row.name for row in kept}
    return [row for row in report.tensors if row.name in names]


def _badness(row: "TensorRow") -> tuple[bool, float]:
    return row.verdict == "bad", row.ratio if row.ratio is not None else row.error.max_rel


def _table(report: "ComparisonReport", rows: "Sequence[TensorRow]") -> str:
    ratios = any(row.ratio is not None for row in report.tensors)
    header = ["tensor", "operator", "max rel", "max abs", "mean abs", "cosine", "verdict"]
    if ratios:
        header = ["tensor", "operator", "R", "max rel", "mean abs", "cosine", "verdict"]
    body = []
    for row in rows:
        error = row.error
        first = _figure(error.max_rel)
        figures = [first, _figure(error.max_abs), _figure(error.mean_abs)]
        if ratios:
            figures = ["-" if row.ratio is None else f"{row.ratio:.3g}", first, figures[2]]
        verdict = f"{row.verdict} {row.deviation}".rstrip()
        if error.nan or error.inf:
            verdict = f"{error.nan + error.inf} not finite"
        cosine = f"{error.cosine:.6f}"
        body.append(
            (
                shortened(printable(row.name), 20),
                shortened(row.operator, 10),
                *figures,
                cosine,
                verdict,
            )
        )
    return table(header, body)


def _figure(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def shortened(text: str, width: int) -> str:
    """A text in at most `width` columns: the end says most of a tensor's name."""
    return text if len(text) <= width else f"..{text[2 - width :]}"


def _sentences(report: "ComparisonReport") -> list[str]:
    sentences = [*_first_faults(report), *_deviations(report)]
    if report.whole:
        sentences.append(
            f"the run as a whole gives {', '.join(report.whole)} otherwise than its steps one by "
            "one: how they are put together is at fault, no kernel by itself"
        )
    sentences += _replaced(report)
    if report.clean and report.suspect is None:
        worst = max((row.error.max_rel for row in report.tensors), default=0.0)
        count = len(report.tensors)
        sentences.append(
            f"nothing is wrong: {count} tensor{'s' if count != 1 else ''} against "
            f"{report.reference}, largest relative error {worst:.3g}"
        )
    return [*sentences, *report.notes]


def _first_faults(report: "ComparisonReport") -> Iterator[str]:
    by_name = {row.name: row for row in report.tensors}
    if report.first_bad is not None:
        row = by_name[report.first_bad]
        work = f", which does the work of {', '.join(row.sources[:6])}" if row.sources else ""
        figure = f"largest relative error {row.error.max_rel:.3g} at {list(row.error.worst)}"
        if row.ratio is not None:
            figure = f"R = {row.ratio:.3g}"
        if row.local_ratio is not None:
            figure += f", {row.local_ratio:.3g} of what arises there"
        yield (
            f"first bad: '{row.name}', written by {row.operator} '{row.node}' (step '{row.step}'"
            f"{work}): {figure}"
        )
    if report.iteration is not None:
        yield report.iteration.sentence
    if report.instruction is not None:
        yield report.instruction.sentence
    if report.first_nan is not None:
        row = by_name[report.first_nan]
        both = "" if row.error.nan or row.error.inf else ", in the reference as well"
        yield f"first not finite: '{row.name}', written by {row.operator} '{row.node}'{both}"


def _deviations(report: "ComparisonReport") -> Iterator[str]:
    """What each rise of R is; in a sentence that ends in the suspect."""
    for kind, means in (("step", "stays behind it"), ("spike", "returns behind it")):
        rows = [row for row in report.tensors if row.deviation == kind]
        if rows:
            named = ", ".join(f"'{row.name}' (R {row.ratio:.3g})" for row in rows[:6])
            more = f" and {len(rows) - 6} more" if len(rows) > 6 else ""
            yield f"{kind}, R {means}: {named}{more}"
    if report.suspect is not None and report.suspect != report.first_bad:
        yield f"the suspect: '{report.suspect}'"


def _replaced(report: "ComparisonReport") -> Iterator[str]:
    if (swap := report.replacement) is None:
        return
    yield f"with the reference's '{swap.tensor}' in place:"
    for name, before in swap.before.items():
        change = f"{before:.3g} -> {swap.after[name]:.3g}"
        if name in swap.ratio_before:
            change += f", R {swap.ratio_before[name]:.3g} -> {swap.ratio_after[name]:.3g}"
        yield f"  {name}: largest relative error {change}"

"""`tilesmith space`: the search space of an operator: knobs, limits, spread, what matters."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import (
    database_option,
    json_option,
    operator_option,
    request_of,
    seed_option,
    target_option,
    threads_option,
)
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.jobs.inspection.space_analysis import SpaceReport

_VALUES_SHOWN = 10
_LIMITS_SHOWN = 8
_BAR = 40


@click.command(cls=Explained)
@operator_option
@click.option("--samples", type=click.IntRange(min=2), default=1000, show_default=True,
              help="Configurations to draw and let the simulator judge.")  # fmt: skip
@seed_option("Of the samples.")
@target_option(required=False)
@database_option(required=False)
@threads_option
@json_option
def space(operators: tuple[str, ...], samples: int, seed: int, as_json: bool, **asked: Any) -> None:
    """Look at the search space of the operator given with --op.

    Its knobs and limits, how latencies spread in it (judged by the simulator), where the default
    and the best known stand, and which knobs matter.
    """
    from tilesmith.jobs.inspection.space_analysis import analysed
    from tilesmith.jobs.subjects.subject import subject_of

    report = analysed(request_of(subject_of(None, operators), asked), samples, seed)
    if as_json:
        print_json(report.to_json())
        return
    click.echo("\n\n".join(_parts(report)))
    for text in report.notes:
        note(text)


def _parts(report: "SpaceReport") -> list[str]:
    return [
        f"{report.workload} on {report.target}\n{report.size:,} configurations: {_legal(report)}",
        _knobs(report),
        _limits(report),
        _distribution(report),
    ]


def _legal(report: "SpaceReport") -> str:
    if report.size == report.combinations:
        return "every combination is legal"
    return f"{report.legal:.3g} of {report.combinations:,} combinations are legal"


def _knobs(report: "SpaceReport") -> str:
    rows = []
    for knob in report.knobs:
        more = f" ... {knob.values[-1]}" if len(knob.values) > _VALUES_SHOWN else ""
        values = " ".join(map(str, knob.values[:_VALUES_SHOWN])) + more
        share = report.importance.get(knob.name)
        counts = "" if share is None else f"{share:.0%}"
        rows.append((knob.name, counts, len(knob.values), values))
    footnote = (
        f"importance: by permutation, from {report.importance_from} ({report.importance_count} "
        f"configurations); the forest explains {max(report.explained, 0):.0%} of unseen ones"
    )
    return table(("knob", "importance", "values", "which"), rows) + f"\n{footnote}"


def _limits(report: "SpaceReport") -> str:
    if not report.limits:
        return "no limits: every combination is legal"
    rows = [
        (f"{limit.breaks:.1%}", f"{limit.alone:.1%}", f"at most {limit.limit}", limit.meaning)
        for limit in report.limits[:_LIMITS_SHOWN]
    ]
    more = len(report.limits) - _LIMITS_SHOWN
    text = table(("illegal", "by it alone", "limit", "of"), rows)
    return text + (f"\nand {more} more limits (--json has all)" if more > 0 else "")


def _distribution(report: "SpaceReport") -> str:
    most = max(count for _, _, count in report.bins)
    lines = [
        f"{low:10.4g} us  {'#' * round(_BAR * count / most):{_BAR}}  {count}"
        for low, _, count in report.bins
    ]
    quantiles = ", ".join(f"{q:.0%} {us:.4g}" for q, us in report.quantiles.items())
    failed = f", {report.failures} of them without a latency" if report.failures else ""
    rows = [
        (one.name.replace("_", " "), one.latency_us, _share(one.faster_than))
        for one in report.standings
    ]
    return "\n".join(
        (
            f"judged latency of {report.drawn} configurations drawn{failed}:",
            *lines,
            f"quantiles, us: {quantiles}",
            "",
            table(("", "us, judged", "faster than"), rows),
        )
    )


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%} of those drawn"

"""`tilesmith explore`: which hardware would serve models best, for its area or power."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import csv_option, page_option
from tilesmith.cli.help import Explained
from tilesmith.cli.options import (
    given,
    json_option,
    operator_option,
    seed_option,
    set_option,
    shape_option,
)
from tilesmith.display.output import note, print_json, table

if TYPE_CHECKING:
    from tilesmith.capabilities.exploration.report import Design, Exploration

_MOST_REFUSED = 3


@click.command(cls=Explained)
@click.option(
    "--target", required=True, help="Where the search begins: a name that 'tilesmith targets' "
    "lists, or a .toml file.",
)  # fmt: skip
@click.option(
    "--vary", multiple=True, metavar="NAME=VALUES",
    help="A number of the target and its values: sbuf.mib=12:96 (doubling), =12:96:5 (five, evenly "
    "by ratio), or tensor.rows=64,128,256; repeatable.",
)  # fmt: skip
@click.option("--model", "models", multiple=True, metavar="MODEL.onnx|MODEL.mlir",
              help="What is to run fast; repeatable.")  # fmt: skip
@operator_option
@click.option("--budget", type=click.Choice(["area", "power"]), default="area", show_default=True,
              help="What latency is weighed against.")  # fmt: skip
@click.option("--at-most", type=float, metavar="MM2|W", help="The most of the budget there is.")
@click.option("--points", type=click.IntRange(min=2), default=1000, show_default=True,
              help="Designs to look at; of a larger grid so many are drawn.")  # fmt: skip
@click.option("--confirm", type=click.IntRange(min=0), default=24, show_default=True,
              help="Designs whose whole models are compiled and played.")  # fmt: skip
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "int8"]), default="fp32",
              show_default=True, help="Of the models' kernels.")  # fmt: skip
@seed_option("Of the designs that are drawn, and of searches.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes on this machine; one a core.")
@click.option("--workers", default="", metavar="N|auto|ray|ray://HOST:PORT",
              help="Do it on a Ray cluster instead.")  # fmt: skip
@csv_option("Write all designs here.", "csv_file")
@page_option("Write a page with the front as a chart here.", "page_file")
@set_option
@shape_option
@json_option
def explore(csv_file: Path | None, page_file: Path | None, as_json: bool, **asked: Any) -> None:
    """Search for hardware: vary numbers of a target, and weigh models' latency against its cost.

    Schedules are searched for anew where a change matters, and shared where it does not. Latencies
    of all designs are estimated, those of the front played; area and power follow a documented
    model (docs/codesign.md). The base is always shown.
    """
    from tilesmith.capabilities.exploration.job import searched_designs
    from tilesmith.capabilities.exploration.pages import csv_text, page
    from tilesmith.display.counting import telling
    from tilesmith.search_space.support.files import check_output

    for path in filter(None, (csv_file, page_file)):
        check_output(path, *asked["models"])
    request = _request(asked)
    with telling() as show:
        exploration = searched_designs(
            request, lambda what, done, total: show(f"{done} of {total} {what}")
        )
    if csv_file is not None:
        csv_file.write_text(csv_text(exploration), encoding="utf-8")
    if page_file is not None:
        page_file.write_text(page(exploration, _command()), encoding="utf-8")
    if as_json:
        print_json(exploration.to_json())
        return
    click.echo(_summary(exploration))
    for text in exploration.notes:
        note(text)


def _request(asked: dict[str, Any]) -> Any:
    from tilesmith.capabilities.exploration.request import ExploreRequest
    from tilesmith.search_space.support.errors import InputError

    request = ExploreRequest(**given(asked))
    for name, extents in request.shapes.items():
        if any(isinstance(extent, tuple) for extent in extents):
            raise InputError(f"'{name}' is given a range; a search for hardware needs one size")
    return request


def _command() -> str:
    """What was typed, as a shell takes it."""
    words = click.get_current_context().find_root().obj or ()
    return shlex.join(["tilesmith", *words])


def _summary(exploration: "Exploration") -> str:
    lines = [
        f"{len(exploration.designs)} designs of {exploration.grid:,} combinations: "
        f"{exploration.judged:,} operators judged, {exploration.shared:,} shared, "
        f"{exploration.searches} searches, {exploration.played} models played",
        f"{exploration.target}: {exploration.next_bottleneck}",
        _table(exploration, [exploration.designs[0], *exploration.front]),
    ]
    if exploration.error == exploration.error:
        lines.append(
            "score: latency to the base's; '~' is estimated: estimates of designs that were played "
            f"afterwards were off by {exploration.error:.0%} in the median"
        )
    lines += ["", "percent for each percent more:", _sensitivities(exploration)]
    for settings, reason in exploration.refused[:_MOST_REFUSED]:
        lines.append(f"no design: {', '.join(f'{n}={v}' for n, v in settings)}: {reason}")
    if len(exploration.refused) > _MOST_REFUSED:
        lines.append(f"and {len(exploration.refused) - _MOST_REFUSED} more that are none")
    return "\n".join(lines)


def _table(exploration: "Exploration", rows: "list[Design]") -> str:
    names = [name for name, _ in rows[0].settings]
    header = (
        "",
        *names,
        exploration.unit,
        "score",
        *(f"{m} us" for m in exploration.models),
        "bound",
        "next",
    )
    return table(
        header,
        [
            (
                "base" if row is exploration.designs[0] else "front",
                *(value for _, value in row.settings),
                f"{row.spent(exploration.budget):.1f}",
                f"{'' if row.played else '~'}{row.score:.3f}",
                *(_us(row.latency_us[model]) for model in exploration.models),
                row.bound,
                row.next_bound,
            )
            for row in rows
        ],
    )


def _sensitivities(exploration: "Exploration") -> str:
    header = ("number", "between", "latency", "area", "power", "best alone", "score there")
    rows = [
        (
            one.name,
            f"{one.low:g} and {one.high:g}",
            *("-" if math.isnan(x) else f"{x:+.2f}" for x in (one.score, one.area, one.power)),
            f"{one.best:g}",
            f"{one.best_score:.3f}",
        )
        for one in exploration.sensitivities
    ]
    return table(header, rows)


def _us(latency: float) -> str:
    return f"{latency:.1f}" if not latency < 100 else f"{latency:.3g}"

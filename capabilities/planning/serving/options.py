"""Options of `tilesmith plan` for more than one point: sweeps, loads, prices, and what they write.

Invariant: nothing here is imported by other commands; what they come to is in
`tilesmith.capabilities.planning.serving.asking`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tilesmith.capabilities.planning.serving.asking import SPLIT
from tilesmith.cli.files import csv_option, page_option
from tilesmith.cli.help import CommandOption
from tilesmith.cli.options import seed_option
from tilesmith.cli.values import NameList, Quantity

Command = TypeVar("Command", bound=Callable[..., Any])

_MOST = 10**9
_POLICIES = ("prefill_first", "chunked", "static")


class Numbers(click.ParamType["tuple[int, ...]"]):
    """`8` or `1,2,4,8`; a tuple without repetitions. `all`, if allowed, is the empty one."""

    def __init__(self, *, open_ended: bool = False) -> None:
        self.open_ended = open_ended
        self.name = "N,N|all" if open_ended else "N,N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        if self.open_ended and value == "all":
            return ()
        try:
            numbers = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            numbers = (0,)
        if not all(1 <= number <= _MOST for number in numbers):
            also = ", or 'all'" if self.open_ended else ""
            self.fail(
                f"'{value}' is no number from 1 to {_MOST:,}, nor several with commas{also}",
                param,
                ctx,
            )
        return numbers


def serving_options(command: Command) -> Command:
    """Add the options of sweeps, loads and prices to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _bound(name: str, help: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", type=Quantity(), metavar="MS", help=help)


_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("--requests-per-second", type=Quantity(), metavar="RATE",
                 help="A load: the fewest chips that serve it are found."),
    click.option("--arrivals", "trace", cls=CommandOption, former=("--trace",),
                 type=click.Path(path_type=Path), metavar="FILE.csv",
                 help="A load as it came: columns arrival (seconds), input and output (tokens)."),
    click.option("--input-spread", type=Quantity(), default=0.0,
                 help="Deviation over mean of a load's prompts, log-normal; 0: all alike."),
    click.option("--output-spread", type=Quantity(), default=0.0, help="The same of its answers."),
    _bound("ttft-p50", "What half of a load's times to first token must not exceed."),
    _bound("ttft-p99", "What 99 of 100 must not exceed."),
    _bound("tpot-p50", "The same for half of the times per output token."),
    _bound("tpot-p99", "The same for 99 of 100."),
    click.option("--policy", "policies", type=NameList((*_POLICIES, SPLIT)),
                 default="prefill_first,chunked", show_default=True,
                 help="Schedules that a load may be served by."),
    click.option("--step-tokens", type=click.IntRange(min=1), default=2048, show_default=True,
                 help="Tokens of prompts that a load's steps work on."),
    click.option("--max-chips", type=click.IntRange(min=1), help="Most chips for a load."),
    click.option("--cheapest", is_flag=True, help="The least dollars, not the fewest chips."),
    click.option("--requests", type=click.IntRange(min=10), default=2000, show_default=True,
                 help="Requests that each simulated replica gets."),
    seed_option("Of the arrivals that are drawn."),
    click.option("--prices", type=click.Path(path_type=Path), metavar="FILE.toml",
                 help="Dollars an hour for instances, in place of those shipped."),
    csv_option("Write all points of a sweep, or all requests of a load, here.", "csv_file"),
    page_option("Write a page with fronts, or with a load's times, here."),
)  # fmt: skip

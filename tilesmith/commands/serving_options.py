"""Options of `tilesmith plan` for more than one point: sweeps, loads, prices, and what they write.

Invariant: nothing here is imported by other commands; the work is in `tilesmith.planning.serving`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilesmith.commands.files import csv_option, page_option
from tilesmith.commands.help import Option
from tilesmith.commands.options import seed_option
from tilesmith.commands.values import NameList, Quantity

if TYPE_CHECKING:
    from tilesmith.planning.architecture import Architecture
    from tilesmith.planning.serving.grid import Grid
    from tilesmith.planning.serving.job import Outputs, Planned, ServingLoad
    from tilesmith.search_space.mesh import Mesh

Command = TypeVar("Command", bound=Callable[..., Any])

_MOST = 10**9
_FASTEST = 10**6
"""Requests a second of a load."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Of a sweep that names none."""
_AT_ONCE = 256
"""Sequences at once that a load may run, unless --batch says."""
_BOUNDS = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
_POLICIES = ("prefill_first", "chunked", "static")
_SPLIT = "disaggregated"
_SHOWN = {"input": "input-tokens", "output": "output-tokens"}
"""Options by the names they are handed on by."""


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
            found = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            found = (0,)
        if not all(1 <= number <= _MOST for number in found):
            also = ", or 'all'" if self.open_ended else ""
            self.fail(
                f"'{value}' is no number from 1 to {_MOST:,}, nor several with commas{also}",
                param,
                ctx,
            )
        return found


def serving_options(command: Command) -> Command:
    """The options of this module."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _bound(name: str, help: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", type=Quantity(), metavar="MS", help=help)


_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("--requests-per-second", type=Quantity(), metavar="RATE",
                 help="A load: the fewest chips that serve it are found."),
    click.option("--arrivals", "trace", cls=Option, former=("--trace",),
                 type=click.Path(path_type=Path), metavar="FILE.csv",
                 help="A load as it came: columns arrival (seconds), input and output (tokens)."),
    click.option("--input-spread", type=Quantity(), default=0.0,
                 help="Deviation over mean of a load's prompts, log-normal; 0: all alike."),
    click.option("--output-spread", type=Quantity(), default=0.0, help="The same of its answers."),
    _bound("ttft-p50", "What half of a load's times to first token must not exceed."),
    _bound("ttft-p99", "What 99 of 100 must not exceed."),
    _bound("tpot-p50", "The same for half of the times per output token."),
    _bound("tpot-p99", "The same for 99 of 100."),
    click.option("--policy", "policies", type=NameList((*_POLICIES, _SPLIT)),
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


def is_point(asked: Mapping[str, Any], meshes: int) -> bool:
    """Whether one deployment under one load is asked for, and nothing written or priced."""
    several = ("pipeline", "expert", "data", "weights", "cache", "batch", "input", "output")
    single = meshes == 1 and bool(asked["tensor"]) and len(asked["tensor"]) == 1
    single &= all(asked[name] is None or len(asked[name]) == 1 for name in several)
    more = any(asked[name] for name in ("csv_file", "page", "prices"))
    return single and not has_load(asked) and not more


def has_load(asked: Mapping[str, Any]) -> bool:
    """Whether a load is asked for."""
    return asked["requests_per_second"] is not None or asked["trace"] is not None


def planned(
    architecture: Architecture, meshes: Sequence[Mesh], asked: Mapping[str, Any]
) -> Planned:
    """Do what is asked for beyond one point.

    Raises:
        InputError: what is asked for does not go together, or cannot be.
        UsageError: options that contradict each other.
    """
    from tilesmith.planning.serving.job import plan_load, plan_sweep

    grid, outputs = _grid(meshes, asked), _outputs(asked)
    if has_load(asked):
        return plan_load(architecture, grid, _load(asked), outputs)
    return plan_sweep(architecture, grid, outputs)


def check_options(asked: Mapping[str, Any]) -> None:
    """Refuse what contradicts itself.

    Raises:
        UsageError: options that contradict each other, or bound a load where there is none.
    """
    if not has_load(asked):
        for name in (*_BOUNDS, "max_chips"):
            if asked[name] is not None:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} bounds a load; give --requests-per-second or "
                    "--arrivals too"
                )
        if asked["cheapest"]:
            raise click.UsageError(
                "--cheapest is of a load; give --requests-per-second or --arrivals"
            )
        return
    if asked["requests_per_second"] is not None and asked["trace"] is not None:
        raise click.UsageError(
            "--requests-per-second and --arrivals are two loads; give one of them"
        )
    rate = asked["requests_per_second"]
    if rate is not None and not 0 < rate <= _FASTEST:
        raise click.UsageError(
            f"--requests-per-second is {rate:g}; above 0 and at most {_FASTEST:,} are allowed"
        )
    for name in _BOUNDS:
        if asked[name] == 0:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is 0 ms, which nothing keeps; give more"
            )
    for name in ("input", "output", "batch"):
        if asked[name] is not None and len(asked[name]) > 1:
            shown = _SHOWN.get(name, name)
            raise click.UsageError(f"--{shown} has several values; a load has one of them")
    if asked["data"] not in (None, (1,)):
        raise click.UsageError("--dp is what a load's answer says; leave it out")
    if asked["trace"] is not None:
        for name in ("input", "output"):
            if asked[name] is not None or asked[f"{name}_spread"]:
                said = f"--{_SHOWN[name]} and its spread are for --arrivals to say; leave them out"
                raise click.UsageError(said)


def _grid(meshes: Sequence[Mesh], asked: Mapping[str, Any]) -> Grid:
    """The grid: where the tensor degree is open, so are those that are not given."""
    from tilesmith.planning.serving.grid import ALL, Grid

    tensor = asked["tensor"] or ALL
    rest = (1,) if tensor else ALL
    pipeline, expert = (rest if asked[n] is None else asked[n] for n in ("pipeline", "expert"))
    batches = asked["batch"] or ((1,) if has_load(asked) else _BATCHES)
    return Grid(
        tuple(meshes), tensor, pipeline, expert,
        data=(1,) if asked["data"] is None else asked["data"],
        weights=asked["weights"] or ("bf16",), caches=asked["cache"] or ("bf16",), batches=batches,
        inputs=asked["input"] or (128,), outputs=asked["output"] or (128,),
        max_sequence=asked["max_sequence"] or 0,
    )  # fmt: skip


def _load(asked: Mapping[str, Any]) -> ServingLoad:
    from tilesmith.planning.serving.answer import Options
    from tilesmith.planning.serving.demand import Bounds
    from tilesmith.planning.serving.job import ServingLoad

    options = Options(
        policies=tuple(name for name in asked["policies"] if name != _SPLIT),
        split=_SPLIT in asked["policies"],
        batch=asked["batch"][0] if asked["batch"] else _AT_ONCE,
        budget=asked["step_tokens"],
        chips=asked["max_chips"] or 0,
        by_cost=asked["cheapest"],
    )
    names = ("requests_per_second", "trace", "input_spread", "output_spread", "requests", "seed")
    return ServingLoad(
        **{name: asked[name] for name in names},
        bounds=Bounds(**{name: asked[name] for name in _BOUNDS}),
        options=options,
    )


def _outputs(asked: Mapping[str, Any]) -> Outputs:
    from tilesmith.planning.serving.job import Outputs

    words = click.get_current_context().find_root().obj or []
    command = shlex.join(["tilesmith", *words])
    return Outputs(asked["csv_file"], asked["page"], asked["prices"], command)

"""What `--help` shows of every command: its options in groups, with defaults, and examples.

An option means the same in every command (docs/decisions/0111-one-name-for-one-thing.md), so the
group that it stands in follows from its name alone, and all groups are declared here. What stands
in none is what the command itself is about, and comes first.

Invariant: an option's former names are accepted and shown nowhere.
"""

from __future__ import annotations

from typing import Any

import click

from tilesmith.cli.examples import EXAMPLES

_OWN = "Options"
_GROUPS = {
    "Model and data": "op model space objective input fill shape update precision calibration "
    "data random",
    "Hardware": "target set mesh threads chips cores database",
    "Search": "trials time-limit early-stopping measure strategy scheduler cost-model resume",
    "Workers": "workers jobs in-flight choosing",
    "Deployment": "tp pp ep dp batch input-tokens output-tokens max-sequence cache prices",
    "Load": "requests-per-second arrivals input-spread output-spread policy step-tokens max-chips "
    "cheapest requests",
    "Bounds of a load": "ttft-p50 ttft-p99 tpot-p50 tpot-p99",
    "Which trials": "workload operator measured-by status config message host machine job "
    "faster-than slower-than since until before older-than latest",
    "Results": "output folder page csv trace",
    "General": "seed json verbose log-level traceback version help",
}
"""Long names of options by the group that shows them, in the order of groups."""

_SMALL = 8
"""A command with fewer options of its own and of groups shows one list."""


class CommandOption(click.Option):
    """An option that still answers to the names it had before.

    Args:
        former: these names.
    """

    def __init__(self, *args: Any, former: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.former = former

    def get_help_extra(self, ctx: click.Context) -> Any:
        """As click, but a default that is told in words stands as they are."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """As click, with the former names beside those that are shown."""
        shown = self.opts
        self.opts = [*shown, *self.former]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


class Explained(click.Command):
    """A command whose help has groups and examples."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if isinstance(param, click.Option) and param.default == "":
                param.show_default = False  # nothing is no news

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list of options for each group."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (_OWN, *_GROUPS)}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                groups[group_of(param)].append(record)
        shown = {name: records for name, records in groups.items() if records}
        if sum(map(len, shown.values())) < _SMALL:
            shown = {_OWN: [record for records in shown.values() for record in records]}
        for name, records in shown.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's examples, each a line that a shell takes."""
        super().format_epilog(ctx, formatter)
        examples = EXAMPLES.get(path_of(ctx), ())
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class ExplainedGroup(click.Group, Explained):
    """A group of such commands."""

    command_class = Explained


def group_of(param: click.Parameter) -> str:
    """The group that an option is shown in."""
    names = {name.removeprefix("--") for name in param.opts}
    return next((group for group, text in _GROUPS.items() if names & {*text.split()}), _OWN)


def path_of(ctx: click.Context) -> str:
    """A command's name with those of its groups: "db top"."""
    names = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.append(at.info_name or "")
        at = at.parent
    return " ".join(reversed(names))

"""`tilesmith targets`: the hardware Tilesmith knows, every number with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tilesmith.commands.options import json_option, set_option
from tilesmith.display.output import print_json, table

if TYPE_CHECKING:
    from tilesmith.search_space.target import Fact, Target


@click.command()
@click.argument("name", required=False)
@set_option
@json_option
def targets(name: str | None, settings: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """List the targets, or explain the one called NAME (a name or a .toml file)."""
    from tilesmith.jobs.targets import all_targets, resolve_target

    if name is None and settings:
        raise click.UsageError("--set changes a number of one target; name the target")
    found = [resolve_target(name, dict(settings))] if name else all_targets()
    if as_json:
        print_json({"targets": [describe(target) for target in found]})
    elif name:
        click.echo(_explanation(found[0]))
    else:
        rows = [(t.name, t.family, t.doc) for t in found]
        click.echo(table(("target", "family", "description"), rows))


def describe(target: Target) -> dict[str, Any]:
    """A target as plain data, facts by dotted name."""
    return {
        "name": target.name,
        "family": target.family,
        "doc": target.doc,
        "identity": target.identity,
        "facts": {name: _fact(fact) for name, fact in target.facts},
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "value": fact.value,
        "unit": fact.unit,
        "source": fact.source,
        "trust": fact.trust,
        "calibratable": fact.calibratable,
        "minimum": fact.minimum,
        "maximum": fact.maximum,
    }


def _explanation(target: Target) -> str:
    rows = [
        (name, _value(fact), fact.unit, fact.source, fact.trust, _range(fact))
        for name, fact in target.facts
    ]
    heading = f"{target.name}: {target.doc or target.family} (family {target.family})\n"
    return heading + table(("fact", "value", "unit", "source", "trust", "allowed"), rows)


def _value(fact: Fact) -> str:
    text = str(fact.value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _range(fact: Fact) -> str:
    if fact.minimum is None and fact.maximum is None:
        return ""
    low = "0" if fact.minimum is None else f"{fact.minimum:g}"
    return f"{low} or more" if fact.maximum is None else f"{low} to {fact.maximum:g}"

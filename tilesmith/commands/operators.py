"""`tilesmith operators`: the operators that have a template, and what `--op` may say of each."""

from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import json_option
from tilesmith.display.output import print_json, table
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.template import Template


@click.command(cls=Explained)
@click.argument("name", required=False)
@json_option
def operators(name: str | None, as_json: bool) -> None:
    """List the operators, or explain the parameters of the one called NAME."""
    from tilesmith.search_space.expressions.dtypes import NAMES
    from tilesmith.search_space.workloads.epilogue import STEPS
    from tilesmith.search_space.workloads.template import template_of, templates

    chosen = [template_of(known) for known in ([name] if name else sorted(templates))]
    if as_json:
        described = [describe(template) for template in chosen]
        print_json({"operators": described, "epilogue_steps": list(STEPS), "dtypes": list(NAMES)})
    elif name:
        click.echo(_explanation(chosen[0]))
    else:
        rows = [(template.operator, template.summary) for template in chosen]
        click.echo(table(("operator", "computes"), rows))
        click.echo(f"\nEvery operator also takes dtype= const= and epilogue= ({', '.join(STEPS)}).")


def describe(template: "Template") -> dict[str, Any]:
    """A template as plain data."""
    parameters = [
        {**object_of(p, "name meaning default"), "required": p.default is None,
         "choices": list(p.choices)}
        for p in template.parameters
    ]  # fmt: skip
    return {**object_of(template, "name:operator summary"), "parameters": parameters}


def _explanation(template: "Template") -> str:
    rows = [
        (p.name, "required" if p.default is None else repr(p.default), p.meaning)
        for p in template.parameters
    ]
    return f"{template.operator}: {template.summary}\n" + table(
        ("parameter", "default", "meaning"), rows
    )

"""`tilesmith doctor`: what this machine has, what it lacks, and what to do about it."""

import shutil
import sys
import textwrap
from itertools import groupby

import click

from tilesmith.cli.help import Explained
from tilesmith.cli.options import json_option
from tilesmith.display.output import print_json

_INDENT = 21
_MARKS = {"fine": " ", "note": "?", "problem": "!"}


@click.command(cls=Explained)
@json_option
def doctor(as_json: bool) -> None:
    """Look at this machine: processor, what is installed, whether it works, noise.

    Lines marked ? are worth knowing. Lines marked ! stop jobs: with one, the exit code is 1.
    """
    from tilesmith.jobs.doctor.examination import examine

    all_findings = []
    for section, findings in groupby(examine(), key=lambda finding: finding.section):
        if not as_json:
            click.echo(f"{section}:")
        for finding in findings:
            all_findings.append(finding)
            if not as_json:
                click.echo(_line(f"{_MARKS[finding.state]} {finding.name}", finding.value))
                if finding.advice:
                    click.echo(_line("", f"-> {finding.advice}"))
    problems = [finding for finding in all_findings if finding.state == "problem"]
    if as_json:
        print_json({"findings": [vars(f) for f in all_findings], "problems": len(problems)})
    else:
        notes = sum(finding.state == "note" for finding in all_findings)
        counts = ((len(problems), "problem"), (notes, "note"))
        click.echo(", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts))
    if problems:
        raise SystemExit(1)


def _line(name: str, text: str) -> str:
    """Two columns, the second as wide as the terminal lets it be; unbroken in a pipe."""
    if not sys.stdout.isatty():
        return f"{name:{_INDENT}}{text}"
    width = max(40, shutil.get_terminal_size().columns - 1)
    hanging = " " * _INDENT
    return textwrap.fill(text, width, initial_indent=f"{name:{_INDENT}}", subsequent_indent=hanging)

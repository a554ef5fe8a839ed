"""`tilesmith simulate --set KEY=A,B,C`: the same subject on many machines, compared."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.options import request_of
from tilesmith.display.output import note, print_json

if TYPE_CHECKING:
    from tilesmith.capabilities.exploration.sweeps.sweeping import Spread
    from tilesmith.jobs.subjects.subject import Subject

Values = list[tuple[str, tuple[str, ...]]]


def simulated_on_many(
    subject: "Subject", targets: Sequence[str], asked: Mapping[str, Any], names: Sequence[str]
) -> bool:
    """As `Addition.does`; `names` are those of the options of the addition."""
    what_if = {name: asked[name] for name in names}
    rest = {name: value for name, value in asked.items() if name not in names}
    own = ("fidelity", "trace", "as_json", "page_file")
    fidelity, trace, as_json, page_file = (rest.pop(name) for name in own)
    values = values_of(subject, targets, rest)
    if not values:
        refuse_alone(what_if)
        return False
    what_if["page_file"] = page_file
    if trace is not None:
        from tilesmith.search_space.support.errors import InputError

        raise InputError("--trace is of one machine; give each --set one value")
    sweep_and_show((subject, {**rest, "target": targets[0]}), values, fidelity, what_if, as_json)
    return True


def values_of(subject: "Subject", targets: Sequence[str], asked: Mapping[str, Any]) -> Values:
    """The settings with their values, if one of them has several; else []."""
    settings = asked["settings"]
    names = [name for name, _ in settings]
    if len(set(names)) == len(names) and not any("," in v or ":" in v for _, v in settings):
        return []
    from tilesmith.capabilities.exploration.sweeps.sweeping import base_of, varied
    from tilesmith.search_space.support.errors import InputError

    base = base_of(request_of(subject, {**asked, "settings": (), "target": targets[0]}))
    ranges = varied(base, settings)
    if all(len(values) == 1 for _, values in ranges):
        return []
    if len(targets) > 1:
        raise InputError("several values after --set compare machines of one target; give one")
    return ranges


def refuse_alone(what_if: Mapping[str, Any]) -> None:
    """Options that mean nothing for one machine, of which a page is of its timeline.

    Raises:
        InputError: one of them is given.
    """
    from tilesmith.search_space.support.errors import InputError

    for name, value in what_if.items():
        if value is not None:
            raise InputError(
                f"--{name.removesuffix('_file')} is for a --set with several values, such as "
                "--set sbuf.mib=24,48,96"
            )


def sweep_and_show(
    asked: "tuple[Subject, Mapping[str, Any]]",
    values: Values,
    fidelity: str | None,
    what_if: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Simulate every combination; print and write what comes of it."""
    from tilesmith.capabilities.exploration.sweeps.sweep_pages import (
        csv_text,
        sweep_page,
        sweep_text,
    )
    from tilesmith.capabilities.exploration.sweeps.sweeping import swept
    from tilesmith.display.counting import counting
    from tilesmith.jobs.subjects.subject import subject_words
    from tilesmith.search_space.support.files import check_output, written

    subject, options = asked
    words = subject_words(subject)
    named = [Path(word) for word in words if Path(word).exists()]
    files = {what_if["csv_file"]: csv_text}
    command = shlex.join(["tilesmith", *(click.get_current_context().find_root().obj or ())])
    files[what_if["page_file"]] = lambda sweep: sweep_page(sweep, _name(words), command)
    for path in filter(None, files):
        check_output(path, *named)
    request = request_of(subject, {**options, "settings": ()})
    schedules: Any = what_if["schedules"] or "best"
    budget: Any = what_if["budget"] or "area"
    spread = _spread(subject, what_if)
    with counting("points") as progress:
        sweep = swept(request, values, fidelity, schedules, budget, progress, spread)
    for path, text in files.items():
        if path is not None:
            with written(path) as file:
                file.write(text(sweep).encode())
    if as_json:
        print_json(sweep.to_json())
        return
    click.echo(sweep_text(sweep, _name(words)))
    for sentence in sweep.notes:
        note(sentence)


def _spread(subject: "Subject", what_if: Mapping[str, Any]) -> "Spread":
    """A model's points take seconds, those of operators less than a process takes to begin."""
    from tilesmith.capabilities.exploration.sweeps.sweeping import Spread
    from tilesmith.jobs.subjects.subject import is_model

    many = is_model(subject) or what_if["schedules"] == "searched"
    jobs = what_if["jobs"] or (len(os.sched_getaffinity(0)) if many else 1)
    return Spread(jobs, what_if["workers"] or "")


def _name(words: Sequence[str]) -> str:
    return Path(words[0]).name if words[0] != "--op" else "; ".join(words[1::2])

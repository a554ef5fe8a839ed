"""`tilesmith pack`: files of best schedules, made, merged, shown, checked, proven."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import output_option
from tilesmith.cli.help import ExplainedGroup
from tilesmith.cli.options import database_option, json_option, threads_option
from tilesmith.display.output import note, print_json, table
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.capabilities.packs.display import Table
    from tilesmith.capabilities.packs.pack import Pack

_FILE = click.Path(path_type=Path)
_FAULTS = 20
"""Schedules that cannot be used, of those that are printed."""

_output = output_option("The pack to write.", metavar="FILE.jsonl", required=True)


@click.group(cls=ExplainedGroup)
def pack() -> None:
    """Best schedules as a file, for where nothing was tuned.

    Models are compiled with the packs that --pack or $TILESMITH_PACKS name, then with those that
    are installed; what the database knows comes first.
    """


@pack.command()
@database_option(required=True)
@_output
@click.option("--target", help="Only this target (name or identity).")
@json_option
def make(database: str, output: Path, target: str | None, as_json: bool) -> None:
    """Write the best schedules of a database that beat the untuned default."""
    from tilesmith.capabilities.packs.making import pack_from
    from tilesmith.records.database import Database
    from tilesmith.search_space.support.files import check_output

    check_output(output, database)
    with Database.open(database, create=False) as opened:
        packed = pack_from(opened, output.name, target=target)
    _write(packed, output, as_json)


@pack.command()
@click.argument("packs", nargs=-1, required=True, type=_FILE)
@_output
@json_option
def merge(packs: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Write the schedules of several packs as one; of two of one workload the faster stays."""
    from tilesmith.capabilities.packs.file_format import read_pack
    from tilesmith.capabilities.packs.making import merged
    from tilesmith.search_space.support.files import check_output

    check_output(output)
    _write(merged(output.name, map(read_pack, packs)), output, as_json)


@pack.command()
@click.argument("packs", nargs=-1, type=_FILE)
@click.option("--schedules", is_flag=True, help="Every schedule, not only how many there are.")
@json_option
def show(packs: tuple[Path, ...], schedules: bool, as_json: bool) -> None:
    """Say what packs hold: those named, else those that models are compiled with here."""
    from tilesmith.capabilities.packs.display import machine_rows, pack_values, schedule_rows
    from tilesmith.capabilities.packs.file_format import read_pack
    from tilesmith.capabilities.packs.places import packs_for

    known = list(map(read_pack, packs)) if packs else packs_for(None)
    if as_json:
        print_json({"packs": [pack_values(one, schedules) for one in known]})
        return
    _table(machine_rows(known))
    if schedules and known:
        click.echo()
        _table(schedule_rows(known))


@pack.command()
@click.argument("packs", nargs=-1, required=True, type=_FILE)
@click.option(
    "--trusted-key",
    type=_FILE,
    metavar="KEY.pem",
    help="Ed25519 public key whose owner has to have signed them ('tilesmith sign'). Unless given: "
    "$TILESMITH_TRUSTED_KEY, if it names one.",
)
@json_option
def check(packs: tuple[Path, ...], trusted_key: Path | None, as_json: bool) -> None:
    """Check that files are packs, and that every schedule is legal for its workload and machine."""
    from tilesmith.capabilities.packs.checking import unfit_schedules
    from tilesmith.capabilities.packs.file_format import read_pack
    from tilesmith.compiler.artifact import signature

    key = signature.trusted_key(trusted_key)
    read = [read_pack(path, key) for path in packs]
    unfit = {one.name: list(unfit_schedules(one)) for one in read}
    counted = {one.name: len(one.schedules) for one in read}
    if as_json:
        pairs = ((name, {"schedules": counted[name], "unfit": unfit[name]}) for name in counted)
        print_json({"packs": {name: _plain(values) for name, values in pairs}})
    for name, faults in unfit.items():
        for fault in faults[:_FAULTS] if not as_json else ():
            click.echo(f"{name}: {fault}")
    if bad := sum(map(len, unfit.values())):
        of = sum(counted.values())
        raise InputError(f"{bad} of {of} schedules cannot be used; make the pack again")
    if not as_json:
        note(f"all {sum(counted.values())} schedules are legal")


@pack.command()
@click.argument("packs", nargs=-1, type=_FILE)
@_output
@database_option(required=False)
@threads_option
@json_option
def revalidate(
    packs: tuple[Path, ...], output: Path, database: str | None, threads: int, as_json: bool
) -> None:
    """Time the schedules of packs beside the untuned default here, and write what is faster.

    One pass over PACKS (those that are installed unless named), without a search: each workload's
    default and schedules run in turns. Where a database is meant, it gets all that was timed.
    """
    from tilesmith.capabilities.packs.display import revalidation_rows
    from tilesmith.capabilities.packs.file_format import read_pack
    from tilesmith.capabilities.packs.places import packs_for
    from tilesmith.capabilities.packs.revalidating import revalidated
    from tilesmith.search_space.support.files import check_output

    check_output(output, *packs)
    known = list(map(read_pack, packs)) if packs else packs_for(None)
    outcomes, packed = revalidated(known, output.name, threads, database)
    if not as_json:
        _table(revalidation_rows(outcomes))
    _write(packed, output, as_json, workloads=[one.to_json() for one in outcomes])


def _table(shown: "Table") -> None:
    click.echo(table(*shown) if shown[1] else "no pack is named or installed")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "unfit": [fault.to_json() for fault in values["unfit"]]}


def _write(packed: "Pack", output: Path, as_json: bool, **more: Any) -> None:
    from tilesmith.capabilities.packs.file_format import write_pack

    size = write_pack(packed, output)
    values = {
        "file": str(output),
        "machines": len(packed.machines),
        "schedules": len(packed.schedules),
        "bytes": size,
        **more,
    }
    if as_json:
        print_json(values)
    else:
        note(
            f"{len(packed.schedules)} schedules for {len(packed.machines)} kinds of machines "
            f"written to {output}, {size:,} bytes"
        )

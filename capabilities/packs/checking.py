"""Whether the schedules of a pack are what their workloads and machines allow.

A pack that reads well may still hold a workload of an operator that nobody knows, or a
configuration outside its space, by hand or by another version. Compiling passes such schedules
over; `tilesmith pack check` names them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.capabilities.packs.pack import Pack, PackedSchedule
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class UnfitSchedule(JsonObject):
    """A schedule of a pack that cannot be used.

    Attributes:
        workload, target: its own.
        why: a clause.
    """

    workload: str
    target: str
    why: str

    def __str__(self) -> str:
        return f"{self.workload} on {self.target}: {self.why}"


def unfit_schedules(pack: Pack) -> Iterator[UnfitSchedule]:
    """Those that are illegal here, in the pack's order."""
    targets = {machine.identity: machine.target for machine in pack.machines}
    for one in pack.schedules:
        record = one.record
        why = illegal_because(one, targets[record.target_identity])
        if why:
            yield UnfitSchedule(record.workload_key, record.target_identity, why)


def illegal_because(schedule: PackedSchedule, target: Target) -> str:
    """Why a schedule is not legal on a machine, "" if it is."""
    try:
        workload = Workload.parse(schedule.record.workload_key)
        if workload.key != schedule.record.workload_key:
            return f"its workload is written '{workload.key}'"
        space_of(workload, target).validate(schedule.record.config)
    except TilesmithError as error:
        return str(error)
    return ""

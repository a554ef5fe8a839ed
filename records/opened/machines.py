"""The machines that trials were measured on: who they are, what they brought, how they stand."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select, update

from tilesmith.records.jobs.clock import UtcNow
from tilesmith.records.opened.store import Store
from tilesmith.records.schema.models import MACHINES, TRIALS, WORKERS
from tilesmith.records.trials.writing import Writer, storable


@dataclass(frozen=True)
class MachineReport:
    """A machine in the record.

    Attributes:
        name: its own.
        host: its host name.
        target: identity of the target that it is, "" if unknown.
        facts: what else could be read of it, by name (processor model, cores, kernel, ...).
        calibration: its own microbenchmarks, by name.
        trials, failures: measured there, and failed among them.
        state, message, pace: what the newest worker there last told (see `WorkerReport`); "" and
            None if none ever did.
        seen_at: when it was last heard of, by the database server's clock.
    """

    name: str
    host: str = ""
    target: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, float] = field(default_factory=dict)
    trials: int = 0
    failures: int = 0
    state: str = ""
    message: str = ""
    pace: float | None = None
    seen_at: datetime | None = None


class MachineStore(Store):
    """Machines of an open database; part of `Database`."""

    def note_machine(
        self,
        name: str,
        *,
        host: str,
        target: str = "",
        facts: Mapping[str, Any] | None = None,
        calibration: Mapping[str, float] | None = None,
    ) -> None:
        """Store a machine's host, target and facts; a machine that is known already is updated.

        Args:
            target: identity of the target that it is.
            facts, calibration: see `MachineReport`; None leaves what is kept.
        """
        values: dict[str, Any] = {"host": storable(host), "target": target, "seen_at": UtcNow()}
        if facts is not None:
            values["facts"] = storable(json.dumps(dict(facts), sort_keys=True))
        if calibration is not None:
            values["calibration"] = json.dumps(dict(calibration), sort_keys=True)
        with self.writing() as connection:
            number = Writer(connection).machine(name)[0]
            connection.execute(update(MACHINES).where(MACHINES.c.id == number).values(values))

    def machines(self) -> list[MachineReport]:
        """Every machine that is known, by name."""
        with self.reading() as connection:
            return _listed(connection)


def _listed(connection: Connection) -> list[MachineReport]:
    counts = {
        number: (int(trials), int(trials) - int(worked))
        for number, trials, worked in connection.execute(
            select(TRIALS.c.machine_id, func.count(), func.count(TRIALS.c.latency_s))
            .where(TRIALS.c.machine_id.is_not(None))
            .group_by(TRIALS.c.machine_id)
        )
    }
    newest = select(WORKERS.c.machine, WORKERS.c.state, WORKERS.c.message, WORKERS.c.pace)
    newest = newest.where(WORKERS.c.machine != "").order_by(WORKERS.c.seen_at)
    reports = {
        row.machine: (row.state, row.message, row.pace) for row in connection.execute(newest)
    }
    machines = []
    for row in connection.execute(select(MACHINES).order_by(MACHINES.c.name)):
        facts, calibration = (json.loads(text or "{}") for text in (row.facts, row.calibration))
        known = (row.name, row.host, row.target, facts, calibration)
        counted, reported = counts.get(row.id, (0, 0)), reports.get(row.name, ("", "", None))
        machines.append(MachineReport(*known, *counted, *reported, row.seen_at))
    return machines

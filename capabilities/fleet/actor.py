"""What an actor of the fleet does: the same runners as without a fleet, in a process elsewhere.

Plain data in, plain data out: workloads and targets as the texts they are stored as, configurations
and results as JSON values (see `search_space.results.measure`). Knows no Ray: the pool makes an
actor of it.
"""

import os
import platform
import socket
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from tilesmith.codegen.host.machine import host_target
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results import versions
from tilesmith.search_space.results.measure import MeasureResult, result_to_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError, TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulators
from tilesmith.tuner.machine_trust.control import control_kernel
from tilesmith.tuner.machines.clocks import boot, since_boot
from tilesmith.tuner.machines.cores import CoreClaim, claim
from tilesmith.tuner.machines.identity import machine_name, this_machine, unfit
from tilesmith.tuner.measurement.runner import Candidate, Runner, RunnerOptions, runners
from tilesmith.tuner.runners.hardware import HardwareRunner

Request = dict[str, Any]
"""{"do": "measure" | "compare", "runner", "asked": [[workload's key, configuration's values], ...],
"best": latency known or None}; one candidate to measure, or rivals of a workload to compare."""


def installed() -> dict[str, str]:
    """The versions that driver and workers must share, beside Ray's own, which Ray checks."""
    toolchain = {name: value for name, value in asdict(Toolchain.installed()).items() if value}
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **toolchain, "features": versions.FEATURES}


class WorkerActor:
    """Measures for one job.

    Args:
        setup: {"target", "threads", "measures"}, the target as `Target.to_json`; `measures`:
            whether trials are timed here, on cores that this process then owns.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._runners: dict[str, Runner] = {}
        self._workloads: dict[str, Workload] = {}
        self._claim: CoreClaim | None = None

    def hello(self) -> dict[str, Any]:
        """Who this is; `refusal`: why it cannot measure, to follow its name in a sentence."""
        greeting = {
            "versions": installed(),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "machine": machine_name(),
            "refusal": "",
        }
        return greeting | (self._placed() if self._setup.get("measures") else {})

    def _placed(self) -> dict[str, Any]:
        """What this machine is, and cores of it for this process alone."""
        host = host_target()
        host = simulators[host.family].calibrated(host, measure=False)
        refusal = unfit(Target.from_json(self._setup["target"]), host) or ""
        if not refusal and self._claim is None:
            try:
                self._claim = claim(self._setup["threads"])
            except TilesmithError as error:
                refusal = f"has no cores to measure on: {error}"
        return {"refusal": refusal, "known": this_machine(host).to_json(), "is": host.to_json()}

    def run(self, requests: list[Request]) -> list[dict[str, Any]]:
        """One answer for each request, in order: {"results"}, and what the runner tells besides."""
        answers: list[dict[str, Any]] = []
        for (what, name), group in groupby(requests, key=lambda one: (one["do"], one["runner"])):
            do = {"measure": self._measure, "compare": self._compare}[what]
            answers += do(self._runner(name), list(group))
        return answers

    def _measure(self, runner: Runner, requests: list[Request]) -> list[dict[str, Any]]:
        """Results of one candidate each; those of a simulator are judged together."""
        batch = [self._candidate(*request["asked"][0]) for request in requests]
        if runner.deterministic:
            return [_answer([result]) for result in runner.measure(batch)]
        answers = []
        for request, candidate in zip(requests, batch, strict=True):
            if request["best"] is not None:
                runner.expect(candidate[0], request["best"])
            before = dict(runner.costs.parts), len(runner.costs.totals)
            try:
                answer = _answer(runner.measure([candidate]))
            except JobError as error:
                answers.append({"refusal": str(error)})
                break  # the others are done elsewhere
            answers.append(answer | _told(runner, *before))
        return answers

    def _compare(self, runner: Runner, requests: list[Request]) -> list[dict[str, Any]]:
        """Results of rivals of one workload, in turns."""
        batches = [[self._candidate(*one) for one in request["asked"]] for request in requests]
        return [_answer(runner.compare(batch)) for batch in batches]

    def close(self) -> None:
        """Stop what measures here."""
        for runner in self._runners.values():
            runner.close()
        self._runners.clear()
        if self._claim is not None:
            self._claim.release()

    def _runner(self, name: str) -> Runner:
        if name not in self._runners:
            target = Target.from_json(self._setup["target"])
            options = RunnerOptions(target, threads=self._setup["threads"])
            if self._claim is not None:
                own, control = self._claim.cores, control_kernel(target)
                options = replace(options, cores=own, control=control)
            self._runners[name] = runners[name](options)
        return self._runners[name]

    def _candidate(self, key: str, values: dict[str, Any]) -> Candidate:
        if key not in self._workloads:
            self._workloads[key] = Workload.parse(key)
        return self._workloads[key], Config.of(values)


def _answer(results: list[MeasureResult]) -> dict[str, Any]:
    return {"results": [result_to_json(result) for result in results]}


def _told(runner: Runner, parts: dict[str, float], trials: int) -> dict[str, Any]:
    """What a runner that uses a machine tells of its latest trial and of the machine.

    Args:
        parts, trials: its costs by part, and how many it had made, before the trial.
    """
    reading = None
    if isinstance(runner, HardwareRunner) and runner.readings:
        reading = runner.readings[-1]
        runner.readings.clear()
    spent = {name: now - parts[name] for name, now in runner.costs.parts.items()}
    return {
        "totals": runner.costs.totals[trials:],
        "spent": spent,
        "gauge": {"pace": runner.pace, "looks": runner.looks, "drift": runner.drift},
        "reading": reading,
        "clock": [boot(), since_boot()],
    }

"""A search for hardware, from what the Python API or a request asks for to the report.

designs ─► every operator on every design (workers) ─► operators added up
        ─► the extremes compiled and played (workers) ─► whole models estimated ─► fronts
        ─► designs of the front played, estimates renewed, some times ─► report
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from tilesmith.capabilities.exploration.findings import Findings, Model
from tilesmith.capabilities.exploration.mapping import mapped_over
from tilesmith.capabilities.exploration.report import Exploration
from tilesmith.capabilities.exploration.request import Budget, ExploreRequest
from tilesmith.capabilities.exploration.search import OperatorDesigns, confirmed, explored, extremes
from tilesmith.capabilities.exploration.variation import Designs, Variation, designs
from tilesmith.jobs.compilation.compiling import parts_of
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Request
from tilesmith.jobs.subjects.subject import subject_of
from tilesmith.jobs.subjects.targets import check_schedulable, resolve_target
from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator.dispatch import simulators

if TYPE_CHECKING:
    from tilesmith.capabilities.exploration.report import Exploration
    from tilesmith.tuner.pretrained.model_corpus import Mapped


ROUNDS = 4
"""Times that designs of the front are played and the estimates renewed."""

Told = Callable[[str, int, int], None]
"""Is told what is done, how many of how many."""


def searched_designs(
    asked: ExploreRequest, progress: Told = lambda what, done, total: None
) -> Exploration:
    """Search for hardware.

    Raises:
        InputError: models, variations or the budget are wrong, or nothing meets the limit.
        TargetError: the target is unknown, or its family has no model of area and power.
        ModelError: a model cannot be read.
        JobError: workers failed.
    """
    base = resolve_target(asked.target, asked.settings)
    simulators[base.family].hardware_cost(base)
    if asked.at_most is not None and not asked.at_most > 0:
        raise InputError(f"a limit of {asked.at_most:g} leaves no design; give one above 0")
    variations = [Variation.parse(text, base) for text in asked.vary]
    points = designs(base, variations, asked.points, np.random.default_rng(asked.seed))
    models = _models(asked, base)
    with mapped_over(asked.jobs, asked.workers) as mapped:
        run = _Run(asked, points, models, mapped, progress)
        findings = Findings(points, models, run.judged(base))
        run.play(findings)
    return findings.report(asked, base.name)


def _models(asked: ExploreRequest, base: Target) -> list[Model]:
    subjects: list[tuple[str, str | None]] = [
        *((name, path) for name, path in _named(asked.models).items()),
        *((text, None) for text in dict.fromkeys(asked.operators)),
    ]
    if not subjects:
        raise InputError("nothing to run; give --model FILE, or --op 'matmul m=512 n=512 k=512'")
    models = []
    for name, path in subjects:
        subject = subject_of(path, () if path else (name,))
        shapes = asked.shapes if path else None
        request = Request(subject, base, precision=asked.precision, shapes=shapes)
        parts = parts_of(request.resolved())
        check_schedulable([part.workload for part in parts.workloads], base, simulated=True)
        weights = {part.workload.key: part.weight for part in parts.workloads}
        models.append(Model(name, path or next(iter(weights)), weights, parts.notes))
    return models


def _named(paths: Sequence[str]) -> dict[str, str]:
    """Models by the shortest name that tells them apart."""
    stems = [Path(path).stem for path in paths]
    return {
        stem if stems.count(stem) == 1 else path: path
        for stem, path in zip(stems, paths, strict=True)
    }


@dataclass
class _Run:
    asked: ExploreRequest
    designs: Designs
    models: Sequence[Model]
    mapped: "Mapped"
    progress: Told

    def judged(self, base: Target) -> dict[str, OperatorDesigns]:
        """Every operator of the models on every design."""
        operators = list(dict.fromkeys(key for model in self.models for key in model.operators))
        text, points = base.to_json(), [list(point) for point in self.designs.points]
        calls = [(operator, text, points, self.asked.seed) for operator in operators]
        judged: dict[str, OperatorDesigns] = {}
        for operator, answer in zip(operators, self.mapped(explored, calls), strict=True):
            judged[operator] = OperatorDesigns(**answer)
            self.progress("operators judged", len(judged), len(operators))
        return judged

    def play(self, findings: Findings) -> None:
        """Play what teaches most of whole models, then what seems best."""
        left = self.asked.confirm
        numbers = extremes([dict(point) for point in self.designs.points])
        left -= self._played(findings, numbers[: max(0, left)])
        for remaining in range(ROUNDS, 0, -1):
            front = findings.front(self.asked.budget, self.asked.at_most)
            unknown = [number for number in front if number not in findings.played]
            share = -(-left // remaining)
            if len(unknown) > share > 0:
                places = np.linspace(0, len(unknown) - 1, share).round().astype(int)
                unknown = [unknown[place] for place in dict.fromkeys(places.tolist())]
            left -= self._played(findings, unknown[: max(0, share)])

    def _played(self, findings: Findings, numbers: Sequence[int]) -> int:
        """Play all models on designs that can run them; how many designs that were."""
        able = [number for number in numbers if findings.runs(number)]
        foretold = findings.estimated() if findings.played else {}
        pairs = [(number, model) for number in able for model in self.models]
        calls = [self._call(findings.judged, number, model) for number, model in pairs]
        answers = self.mapped(confirmed, calls) if calls else []
        for done, ((number, model), answer) in enumerate(zip(pairs, answers, strict=True), 1):
            findings.take(number, model.name, answer)
            if foretold and "latency_us" in answer:
                error = foretold[model.name][number] / answer["latency_us"] - 1.0
                findings.errors.append(abs(float(error)))
            self.progress("models played", done, len(pairs))
        return len(able)

    def _call(
        self, judged: Mapping[str, OperatorDesigns], number: int, model: Model
    ) -> tuple[object, ...]:
        return (
            model.subject,
            self.asked.precision,
            {name: list(shape) for name, shape in self.asked.shapes.items()},
            self.designs.targets[number].to_json(),
            {key: judged[key].configs[number] for key in model.operators},
        )


class AskedOfExploration(TypedDict, total=False):
    """What a search for hardware may be told; see `ExploreRequest`."""

    budget: Budget
    at_most: float | None
    points: int
    confirm: int
    precision: str
    shapes: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, str | FactValue]
    seed: int
    jobs: int
    workers: str


@takes(AskedOfExploration)
def explore(
    target: str | Target,
    vary: Mapping[str, str | float | Sequence[str | float]],
    models: str | Path | Sequence[str | Path] = (),
    operators: str | Sequence[str] = (),
    **asked: Unpack[AskedOfExploration],
) -> Exploration:
    """Search for hardware: vary numbers of a target, and weigh models' latency against its cost.

        found = ts.explore("trn1", {"sbuf.mib": "12:96"}, models="model.onnx")
        found.front[0].settings, found.front[0].latency_us

    Args:
        target: where the search begins.
        vary: by name of a number its values: "12:96" (doubling), "12:96:5" (five, evenly by ratio),
            or several.
        models, operators: what is to run fast: files, and texts such as "matmul m=512 n=512 k=512".
        asked: `budget` ("area" or "power"), `at_most` of it, `points`, `confirm`, `precision`,
            `shapes`, `settings`, `seed`, `jobs` and `workers`, as the command `explore`.

    Raises:
        InputError: models, variations or the budget are wrong, or nothing meets the limit.
        JobError: workers failed.
    """

    texts = tuple(f"{name}={_values(values)}" for name, values in vary.items())
    files = (models,) if isinstance(models, str | Path) else models
    named = (operators,) if isinstance(operators, str) else tuple(operators)
    return searched_designs(ExploreRequest(target, texts, tuple(map(str, files)), named, **asked))


def _values(values: str | float | Sequence[str | float]) -> str:
    if isinstance(values, str | int | float):
        return str(values)
    return ",".join(map(str, values))

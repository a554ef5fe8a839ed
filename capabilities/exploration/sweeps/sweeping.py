"""What if the machine were another: one subject simulated on a target with numbers changed.

    --set sbuf.mib=24,48,96 --set dma.engines=8:32       every combination, and the target as it is

The baseline is the target as it is described. Every point is what `simulate` says of that machine;
where its schedules come from is chosen:

- "chosen": as `simulate` chooses for one machine: the best that the database has for that very
  machine, else the nearest shape's, else the default;
- "kept": the baseline's, wherever they are legal on the point, so that nothing but the machine
  differs;
- "best": the faster of both, so that a machine that is better in everything is never slower;
- "searched": searched for anew on every point, the baseline too, by the simulator's judgement, as
  `explore` does.

Invariants: deterministic; numbers ascend, the last setting's fastest; a point that is no machine,
or on which the subject does not fit, has a reason and no latency.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Unpack

from tilesmith.capabilities.exploration.mapping import mapped_over
from tilesmith.capabilities.exploration.request import Budget
from tilesmith.capabilities.exploration.sweeps import playing
from tilesmith.capabilities.exploration.sweeps.sweep_report import (
    MachinePoint,
    MachineSweep,
    Schedules,
)
from tilesmith.capabilities.exploration.variation import Variation
from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.jobs.subjects.subject import is_artifact
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator import SimulationResult
from tilesmith.simulator.designs.fronts import front

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.subject import Subject
    from tilesmith.tuner.pretrained.model_corpus import Mapped

MOST = 1000
"""Points of a sweep; `explore` searches among more."""

Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Spread:
    """Where points are simulated; see `mapped_over`."""

    jobs: int = 1
    workers: str = ""


ALONE = Spread()


def varied(base: Target, settings: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, ...]]]:
    """Settings with the values of each: `24,48`, `12:96` (doubling), `12:96:5`, or one.

    A comma or colon separates values only of numbers, and of facts with a list of choices; a
    setting that is named again has all its values.

    Raises:
        TargetError: no such target or number.
        InputError: values that are none.
    """
    by_name: dict[str, tuple[str, ...]] = {}
    for name, text in settings:
        fact = base.fact(name)
        if isinstance(fact.value, int | float) and not isinstance(fact.value, bool):
            values: tuple[str, ...] = (text,)
            if "," in text or ":" in text:
                parsed = Variation.parse(f"{name}={text}", base)
                values = tuple(parsed.text(value) for value in parsed.values)
        else:
            choices = fact.choices and "," in text
            values = tuple(part.strip() for part in text.split(",")) if choices else (text,)
        by_name[name] = tuple(dict.fromkeys((*by_name.get(name, ()), *values)))
    return list(by_name.items())


@takes(Asked)
def sweep(
    subject: "Subject",
    values: Mapping[str, str | float | Sequence[str | float]],
    target: str | Target,
    database: Named = BY_DEFAULT,
    *,
    fidelity: str | None = None,
    schedules: Schedules = "best",
    budget: Budget = "area",
    jobs: int = 1,
    **asked: Unpack[Asked],
) -> MachineSweep:
    """What a model or an operator would cost on a target with other numbers, all combinations.

    Args:
        subject: as `simulate` takes it.
        values: by name of a number: one value, several, or a text such as "12:96" (doubling).
        schedules, budget: see this module's docstring, and `MachineSweep`.
        jobs: processes that simulate points; the answer is the same.
        asked: `threads`, `precision`, `shapes`, as `tune`; settings belong to `values`.

    Raises:
        InputError: as `simulate`; or values that are none, or too many points.
    """
    request = Request(subject, target, here(database), **asked)
    texts = [
        (name, ",".join(map(str, v)) if isinstance(v, Sequence) and not isinstance(v, str)
         else str(v))
        for name, v in values.items()
    ]  # fmt: skip
    ranges = varied(base_of(request), texts)
    return swept(request, ranges, fidelity, schedules, budget, spread=Spread(jobs))


def swept(
    request: Request,
    values: Sequence[tuple[str, Sequence[str]]],
    fidelity: str | None = None,
    schedules: Schedules = "best",
    budget: Budget = "area",
    progress: Told = lambda done, total: None,
    spread: Spread = ALONE,
) -> MachineSweep:
    """Simulate a request's subject on the product of settings (`varied`).

    Args:
        request: its own settings are not looked at.
        fidelity: as `simulated`.
        progress: how many points are done, of how many.
        spread: who simulates the points; the answer is the same.

    Raises:
        InputError: subject, target or database are wrong; too many points; schedules that cannot be
            chosen so.
        TilesmithError: whatever keeps the subject from running on the target as it is.
        DependencyError, JobError: as `mapped_over`.
    """
    texts, names = _settings(values), tuple(name for name, _ in values)
    request = replace(request, settings=None)
    base = base_of(request)
    own = tuple((name, playing.own_text(base, name)) for name in names)
    progress(0, len(texts) + 1)
    with mapped_over(min(spread.jobs, len(texts)), spread.workers) as mapped:
        others = [number for number, text in enumerate(texts) if text != own]
        asked = _Points(request, base, own, fidelity, schedules)
        half = partial(_halfway, progress, len(others) + 1)
        baseline, answers = asked.played([texts[number] for number in others], mapped, half)
        points = [baseline] * len(texts)
        for done, (number, point) in enumerate(zip(others, answers, strict=True), 1):
            points[number] = point
            progress(max(done, len(others) // 2) if schedules == "best" else done, len(others) + 1)
    progress(len(others) + 1, len(others) + 1)
    rows = [baseline, *points]
    best = front([(row.spent(budget), row.latency_us) for row in rows])
    rows = [
        replace(row, on_front=number in best or (row is baseline and 0 in best))
        for number, row in enumerate(rows)
    ]
    notes = [] if baseline.cost is not None else [
        f"nothing here knows area and power of family '{base.family}'; no front is shown"
    ]  # fmt: skip
    if (said := _unlike(rows, schedules)) is not None:
        notes.append(said)
    return MachineSweep(base.name, names, rows[0], tuple(rows[1:]), schedules, budget, tuple(notes))


def _halfway(progress: Told, total: int, done: int) -> None:
    progress(done // 2, total)


@dataclass(frozen=True)
class _Points:
    """The baseline and the points of a sweep; attributes as `playing.Player` has them."""

    request: Request
    base: Target
    own: playing.Settings
    fidelity: str | None
    schedules: Schedules

    def played(
        self, texts: Sequence[playing.Settings], mapped: "Mapped", progress: Callable[[int], None]
    ) -> tuple[MachinePoint, Iterable[MachinePoint]]:
        """The baseline, played here while other processes are at the points; and these.

        Args:
            progress: how many points have been looked at, and will be again.
        """
        asked = (self.request, self.base, self.own, self.fidelity, self.schedules)
        if self.schedules == "best" and not is_artifact(self.request.subject):
            early = playing.Player(*asked)
            first = mapped(playing.played_first, [(early, text) for text in texts])
            play = playing.player_of(*asked)
            baseline = self._baseline(play, {})
            again = []
            for one in first:
                again.append((play, *one))
                progress(len(again))
            return baseline, mapped(playing.played_then, again)
        play = playing.player_of(*asked)
        choices: list[playing.Choices] = [{}] * (len(texts) + 1)
        if self.schedules == "searched":
            choices = play.searched(texts, mapped)
        pairs = zip(texts, choices[1:], strict=True)
        answers = mapped(playing.played, [(play, *pair) for pair in pairs])
        return self._baseline(play, choices[0]), answers

    def _baseline(self, play: playing.Player, choices: playing.Choices) -> MachinePoint:
        return MachinePoint(self.own, play.result(self.base, choices), playing.cost_of(self.base))


def _settings(values: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[tuple[str, str], ...]]:
    """Names and values of every point of a product of settings.

    Raises:
        InputError: there are too many.
    """
    count = math.prod(len(several) for _, several in values)
    if count > MOST:
        raise InputError(
            f"these settings make {count:,} points, and a sweep has at most {MOST:,}; "
            "'tilesmith explore' searches among more"
        )
    names = [name for name, _ in values]
    return [
        tuple(zip(names, combination, strict=True))
        for combination in itertools.product(*(several for _, several in values))
    ]


def base_of(request: Request) -> Target:
    """The target of a request as it is; of an artifact, the one it was compiled for."""
    if is_artifact(request.subject):
        from tilesmith.compiler.varying.executable import load
        from tilesmith.jobs.compilation.compiling import at_one_size

        return at_one_size(load(str(request.subject)), request.shapes or {}).recipe.target
    return resolve_target(
        request.target, calibrate=True, database=None if request.database is None
        else str(request.database),
    )  # fmt: skip


def _unlike(rows: Sequence[MachinePoint], schedules: Schedules) -> str | None:
    """A warning where the baseline runs schedules of a search and the others do not."""
    if schedules not in ("best", "chosen"):
        return None
    tuned = [0 if row.result is None else _tuned(row.result) for row in rows]
    if not tuned[0] or all(tuned[1:]):
        return None
    return (
        f"the baseline runs {tuned[0]} tuned schedules, which other machines do not have; "
        "--schedules searched compares like with like"
    )


def _tuned(result: SimulationResult) -> int:
    tuned = result.details.get("tuned")
    alone = sum(bool(op.details.get("tuned")) for op in result.ops)
    return alone if tuned is None else int(tuned)

"""Layouts: a pack knows what the default takes in its own, and near shapes change none."""

from __future__ import annotations

from collections.abc import Sequence

from tests.capabilities.packs.made_up import machine, pack_with, schedule
from tilesmith.capabilities.packs.lookup import PackRecords
from tilesmith.capabilities.packs.revalidation import trialled
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import Candidate
from tilesmith.tuner.runners.simulator import SimulatorRunner

HERE = machine()
CONV = Workload.parse("conv2d c=32 h=28 w=28 oc=32 kh=1 kw=1 const=weight")
NEAR = Workload.parse("conv2d c=32 h=28 w=28 oc=48 kh=1 kw=1 const=weight")


def layouts(config: object) -> tuple[str, str]:
    return template_of("conv2d").layouts(CONV, config)  # type: ignore[arg-type]


USUAL = default_of(CONV, HERE)
SAME = next(c for c in space_of(CONV, HERE) if layouts(c) == layouts(USUAL) and c != USUAL)
OTHER = next(c for c in space_of(CONV, HERE) if layouts(c) != layouts(USUAL))


class Told(SimulatorRunner):
    """The default takes twice as long as whatever stands beside it."""

    def __init__(self) -> None:
        """Nothing."""

    def compare(self, batch: Sequence[Candidate], cancel: object = None) -> list[MeasureResult]:
        times = [1.9e-5 if config == USUAL else 1e-5 for _, config in batch]
        return [MeasureResult("ok", "hardware", (seconds,)) for seconds in times]


def kept(*configs: object) -> dict[tuple[str, str], object]:
    pack = pack_with((HERE, schedule(CONV, HERE, config=configs[0])))  # type: ignore[arg-type]
    (done,) = trialled([pack], HERE, 1, Told())
    return {one.record.layouts: one.record.config for one in done.schedules}


def test_where_another_layout_wins_the_defaults_time_in_its_own_is_kept() -> None:
    assert kept(OTHER) == {layouts(OTHER): OTHER, layouts(USUAL): USUAL}
    assert kept(SAME) == {layouts(SAME): SAME}, "and not where it lost in the same"


def test_a_near_shape_offers_no_other_layout() -> None:
    for config, offered in ((SAME, 1), (OTHER, 0)):
        pack = pack_with((HERE, schedule(CONV, HERE, config=config)))
        assert len(PackRecords(None, [pack], HERE).elsewhere(NEAR, HERE, 1)) == offered

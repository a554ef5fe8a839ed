"""Every registered scheduler keeps its contract, on the examples of its operators.

The tests walk over the registry, so a new scheduler file is covered by being there. What schedules
compute is tested beside: `test_templates` on this machine, `test_accelerator_templates` on cores,
`tests/property/test_programs` by interpretation.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from tests.conformance.family_checks import SHIPPED
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.family import families
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, TargetError, WorkloadError
from tilesmith.search_space.workloads.scheduler import (
    find_scheduler,
    is_scheduled,
    scheduler_of,
    schedulers,
)
from tilesmith.search_space.workloads.template import templates
from tilesmith.search_space.workloads.workload import Workload

TARGETS = {
    "cpu": host_target(),
    **{target.family: target for target in reversed(SHIPPED)},
}
"""A target of each family."""

NAMES = [tuple(name.split(" on ")) for name in schedulers]
"""(operator, family) of every scheduler."""

LEAST = {"cpu": 16, "systolic": 1, "trainium": 16}
"""How many operators a family has schedules for at least, so that none is lost unnoticed."""


def scheduled(operator: str, family: str) -> Iterator[tuple[Workload, Target]]:
    """The examples of an operator that a family has schedules for."""
    for text in templates[operator].examples:
        workload = Workload.parse(text)
        if is_scheduled(workload, TARGETS[family]):
            yield workload, TARGETS[family]


@pytest.mark.parametrize(("operator", "family"), NAMES)
def test_a_scheduler_is_of_a_known_operator_and_family(operator: str, family: str) -> None:
    assert operator in templates
    assert family in families
    assert find_scheduler(operator, family) is schedulers[f"{operator} on {family}"]


def test_operators_keep_their_schedulers() -> None:
    found = [family for _, family in NAMES]
    assert all(found.count(family) >= count for family, count in LEAST.items())


@pytest.mark.parametrize(("operator", "family"), NAMES)
def test_a_workload_is_scheduled_or_refused_in_a_sentence(operator: str, family: str) -> None:
    target = TARGETS[family]
    scheduler = schedulers[f"{operator} on {family}"]
    for text in templates[operator].examples:
        workload = Workload.parse(text)
        refusal = scheduler.refusal(workload, target)
        assert is_scheduled(workload, target) == (refusal is None)
        if refusal is not None:
            with pytest.raises(WorkloadError) as raised:
                scheduler_of(workload, target)
            assert str(raised.value) == refusal
    assert list(scheduled(operator, family)), "every example is refused"


@pytest.mark.parametrize(("operator", "family"), NAMES)
def test_the_space_holds_the_default_and_what_it_samples(operator: str, family: str) -> None:
    for workload, target in scheduled(operator, family):
        space = space_of(workload, target)
        assert space.size > 0 and not space.empty
        space.validate(default_of(workload, target))
        for config in space.sample(np.random.default_rng(1), 5):
            space.validate(config)
        with pytest.raises(ConfigError):
            space.validate(Config.of(nonsense=1))


@pytest.mark.parametrize(("operator", "family"), NAMES)
def test_equal_arguments_give_equal_answers(operator: str, family: str) -> None:
    for workload, target in scheduled(operator, family):
        scheduler = scheduler_of(workload, target)
        space, config = scheduler.space(workload, target), scheduler.default(workload, target)
        assert scheduler.space(workload, target) == space
        assert scheduler.default(workload, target) == config
        structure = space.structure(config)
        first, again = (scheduler.schedule(workload, target, structure) for _ in range(2))
        assert first == again


ABSENT = [pair for pair in product(templates, TARGETS) if find_scheduler(*pair) is None]


@pytest.mark.parametrize(("operator", "family"), ABSENT)
def test_an_absent_scheduler_is_named_with_the_families_that_have_one(
    operator: str, family: str
) -> None:
    workload, target = Workload.parse(templates[operator].examples[0]), TARGETS[family]
    assert not is_scheduled(workload, target)
    with pytest.raises(TargetError) as raised:
        scheduler_of(workload, target)
    said = str(raised.value)
    assert f"'{operator}' has no schedule for target '{target.name}' of family '{family}'" in said
    assert all(other in said for name, other in NAMES if name == operator)


def test_what_to_use_instead_is_said() -> None:
    workload = Workload.parse("attention m=5 n=7 k=3")
    instead = "it is for cpu, lpu, trainium, elsewhere use matmul and softmax"
    with pytest.raises(TargetError, match=instead):
        scheduler_of(workload, TARGETS["systolic"])


def test_a_fact_misspelt_in_a_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, target = Workload.parse(templates["softmax"].examples[0]), TARGETS["cpu"]
    scheduler = scheduler_of(workload, target)
    monkeypatch.setattr(type(scheduler), "default", lambda *_: target.integer("vector.byts"))
    assert is_scheduled(workload, target)
    default_of.cache_clear()
    with pytest.raises(TargetError, match=r"has no 'vector\.byts'"):
        default_of(workload, target)

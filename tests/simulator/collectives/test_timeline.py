"""The event simulation of collectives: closed forms, contention, and the analytical cost."""

from __future__ import annotations

import pytest

from tests.simulator.collectives.test_cost import ALPHA, RATE, mesh_of
from tilesmith.search_space.meshes.mesh import COLLECTIVE_KINDS, load_mesh
from tilesmith.search_space.support.errors import TargetError
from tilesmith.simulator.collectives import (
    CollectiveCall,
    collective_cost,
    collective_timeline,
    timeline,
)


def test_a_ring_takes_its_closed_form() -> None:
    p, n = 7, 1e7  # no power of two: halving does not apply, and a mesh loads inner links more
    mesh = mesh_of("ring", p, 2)
    (seconds,) = collective_timeline(mesh, [CollectiveCall("all_reduce", n, tuple(range(p)))])
    expected = 2 * (p - 1) * ALPHA + 2 * (p - 1) / p * n / (2 * RATE)
    assert seconds == pytest.approx(expected, rel=1e-3)
    assert collective_cost(mesh, "all_reduce", n, tuple(range(p))).algorithm == "ring"


def test_two_over_one_link_take_turns_and_two_over_two_do_not() -> None:
    mesh, n = mesh_of("ring", 8, 2), 1e7
    alone = ALPHA + n / RATE
    assert collective_timeline(mesh, [CollectiveCall("send", n, (0, 1))]) == [
        pytest.approx(alone, rel=1e-3)
    ]
    both = collective_timeline(
        mesh, [CollectiveCall("send", n, (0, 1)), CollectiveCall("send", n, (2, 3))]
    )
    assert both == [pytest.approx(alone, rel=1e-3)] * 2
    turns = collective_timeline(
        mesh, [CollectiveCall("send", n, (0, 2)), CollectiveCall("send", n, (1, 2))]
    )
    assert max(turns) == pytest.approx(ALPHA + 2 * n / RATE, rel=1e-3)
    back = collective_timeline(
        mesh, [CollectiveCall("send", n, (0, 1)), CollectiveCall("send", n, (1, 0))]
    )
    assert back == [pytest.approx(alone, rel=1e-3)] * 2, "the other direction is another link"


def test_groups_that_share_links_delay_each_other() -> None:
    mesh, n = load_mesh("trn1.32xlarge"), 2**24
    rows, columns = mesh.groups(8), mesh.groups(4, 8)
    apart = collective_timeline(mesh, [CollectiveCall("all_gather", n, group) for group in rows])
    assert max(apart) == pytest.approx(
        collective_timeline(mesh, [CollectiveCall("all_gather", n, rows[0])])[0], rel=0.01
    )
    together = collective_timeline(
        mesh, [CollectiveCall("all_gather", n, group) for group in columns]
    )
    assert (
        max(together)
        > 1.5 * collective_timeline(mesh, [CollectiveCall("all_gather", n, columns[0])])[0]
    ), "both cores of a chip take the chip's links"


@pytest.mark.parametrize("name", ["trn1.32xlarge", "inf2.48xlarge", "trn2.3xlarge"])
def test_the_analytical_cost_is_close(name: str) -> None:
    """It takes steps to be common to all: what runs on behind another is what it leaves out."""
    mesh = load_mesh(name)
    groups = [tuple(range(mesh.cores)), tuple(range(mesh.cores_per_chip)), (0, mesh.cores - 1)]
    for kind in COLLECTIVE_KINDS:
        for group in groups if kind != "send" else groups[-1:]:
            for size in (2**10, 2**18, 2**22, 2**26):
                cost = collective_cost(mesh, kind, size, group).seconds
                (played,) = collective_timeline(mesh, [CollectiveCall(kind, size, group)])
                assert 0.7 * cost < played < 1.15 * cost, f"{kind} of {size} over {len(group)}"


def test_a_group_of_one_takes_no_time() -> None:
    mesh = load_mesh("trn1.2xlarge")
    assert collective_timeline(mesh, [CollectiveCall("all_reduce", 8, (1,))]) == [0.0]


def test_what_cannot_be_played_in_seconds_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MOST_SLICES", 100)
    mesh, calls = mesh_of("switch", 16, 2), [CollectiveCall("all_to_all", 2**20, tuple(range(16)))]
    with pytest.raises(TargetError, match=r"all_to_all over 16 cores .* 480 slices, more than"):
        collective_timeline(mesh, calls)

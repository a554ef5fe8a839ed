"""The analytical cost of collectives against closed forms of the literature.

Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (2005).
"""

from __future__ import annotations

import pytest

from tilesmith.search_space.meshes.mesh import Mesh, load_mesh, parse_mesh
from tilesmith.search_space.support.errors import TargetError
from tilesmith.simulator.collectives import collective_cost
from tilesmith.simulator.collectives.cost import lines_of

ALPHA, RATE = 2e-6, 10e9
"""Seconds a step, and bytes a second of one link in one direction."""


def mesh_of(topology: str, members: str | int, links: int) -> Mesh:
    """A level of chips of one core, whose memory is never what takes time."""
    return parse_mesh(
        topology,
        f"""
        core = "trn1"
        levels = ["net"]
        memory = {{gib = 1, gbps = 1e9}}
        net = {{members = "{members}", topology = "{topology}", gbps = {links * RATE / 1e9},
               hop_us = {ALPHA * 1e6}}}
        collective = {{start_us = 0, slices = 2, link_efficiency = 1.0, reduce_passes = 1}}
        """.replace(",\n               ", ", "),
    )


def seconds(mesh: Mesh, kind: str, algorithm: str, size: float) -> float:
    """What one algorithm over all cores takes."""
    (((*lines,),),) = lines_of(mesh, kind, tuple(range(mesh.cores)))  # type: ignore[arg-type]
    return next(line for line in lines if line.algorithm == algorithm).seconds(size)


def test_ring_over_a_switch() -> None:
    p, n = 8, 1e6
    mesh = mesh_of("switch", p, 1)
    gather = (p - 1) * (ALPHA + n / p / RATE)
    assert seconds(mesh, "all_gather", "ring", n) == pytest.approx(gather)
    assert seconds(mesh, "reduce_scatter", "ring", n) == pytest.approx(gather, rel=1e-4)
    both = 2 * (p - 1) * ALPHA + 2 * (p - 1) / p * n / RATE
    assert seconds(mesh, "all_reduce", "ring", n) == pytest.approx(both, rel=1e-4)


def test_ring_uses_both_directions_of_a_ring_and_all_links_of_a_torus() -> None:
    n = 1e6
    for mesh, links in ((mesh_of("ring", 8, 2), 2), (mesh_of("torus", "4x4", 4), 4)):
        p = mesh.cores
        expected = (p - 1) * (ALPHA + n / p / (links * RATE))
        assert seconds(mesh, "all_gather", "ring", n) == pytest.approx(expected)


def test_halving_and_doubling_over_a_switch() -> None:
    p, n = 8, 1e6
    mesh = mesh_of("switch", p, 1)
    expected = 2 * 3 * ALPHA + 2 * (p - 1) / p * n / RATE
    assert seconds(mesh, "all_reduce", "rdh", n) == pytest.approx(expected, rel=1e-4)


def test_halving_along_the_axes_of_a_torus_takes_one_link_at_a_time() -> None:
    p, n = 16, 1e6
    mesh = mesh_of("torus", "4x4", 4)
    expected = 4 * ALPHA + (p - 1) / p * n / RATE
    assert seconds(mesh, "all_gather", "rdh", n) == pytest.approx(expected)


def test_mesh_takes_one_step_and_loads_links_by_the_ways_over_them() -> None:
    p, n = 8, 1e6
    assert seconds(mesh_of("switch", p, 1), "all_gather", "mesh", n) == pytest.approx(
        ALPHA + (p - 1) / p * n / RATE
    )
    assert seconds(mesh_of("all_to_all", p, p - 1), "all_gather", "mesh", n) == pytest.approx(
        ALPHA + n / p / RATE
    )
    # on a ring of 7 the ways are 1, 2 and 3 links long in each direction: each link has 6
    assert seconds(mesh_of("ring", 7, 2), "all_gather", "mesh", n) == pytest.approx(
        ALPHA + 6 * n / 7 / RATE
    )


def test_adding_takes_a_network_no_longer_than_copying() -> None:
    """It is the DMA engines of cores that add at half their rate, not the ports of a switch."""
    mesh = mesh_of("switch", 8, 1).with_settings({"collective.reduce_passes": 2})
    gather = seconds(mesh, "all_gather", "ring", 1e6)
    assert seconds(mesh, "reduce_scatter", "ring", 1e6) == pytest.approx(gather, rel=1e-4)


def test_a_send_takes_one_hop_and_one_link() -> None:
    cost = collective_cost(mesh_of("ring", 8, 2), "send", 1e6, (0, 1))
    assert cost.seconds == pytest.approx(ALPHA + 1e6 / RATE)
    assert cost.bus_gbps == pytest.approx(cost.gbps)


def test_mesh_is_for_small_tensors_and_rings_for_large_ones() -> None:
    for name in ("trn1.32xlarge", "trn2.48xlarge"):
        mesh = load_mesh(name)
        group = tuple(range(mesh.cores))
        assert "mesh" in collective_cost(mesh, "all_reduce", 2**16, group).algorithm
        assert "ring" in collective_cost(mesh, "all_reduce", 2**28, group).algorithm


def test_groups_at_the_same_time_share_links() -> None:
    mesh, n = load_mesh("trn1.32xlarge"), 2**26
    rows, columns = mesh.groups(8), mesh.groups(4, 8)

    def seconds(groups: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
        alone = collective_cost(mesh, "all_gather", n, groups[0]).seconds
        return alone, collective_cost(mesh, "all_gather", n, groups[0], groups).seconds

    alone, all_rows = seconds(rows)
    assert all_rows == pytest.approx(alone), "rows of a torus share no link"
    alone, all_columns = seconds(columns)
    assert all_columns == pytest.approx(2 * alone, rel=0.05), "two cores share their chip's"


def test_more_bytes_never_take_less_time() -> None:
    mesh = load_mesh("trn1.32xlarge")
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for group in (mesh.groups(32)[0], mesh.groups(4, 8)[3], (0, 3, 4), (7,)):
            times = [collective_cost(mesh, kind, 4.0**i, group).seconds for i in range(16)]  # type: ignore[arg-type]
            assert times == sorted(times)


def test_between_instances_a_step_takes_longer() -> None:
    two = load_mesh("trn1.32xlarge").with_settings({"instances.members": "2"})
    within = collective_cost(two, "all_reduce", 1024, tuple(range(32)))
    between = collective_cost(two, "all_reduce", 1024, tuple(range(64)))
    assert between.seconds - within.seconds > 15e-6


def test_wrong_kinds_and_groups_are_refused() -> None:
    mesh = load_mesh("trn1.2xlarge")
    with pytest.raises(TargetError, match=r"unknown collective 'broadcast'; one of all_reduce"):
        collective_cost(mesh, "broadcast", 8, (0, 1))  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="two are expected, from and to"):
        collective_cost(mesh, "send", 8, (0,))
    with pytest.raises(TargetError, match="cores 0 to 1 are allowed"):
        collective_cost(mesh, "all_reduce", 8, (0, 2))

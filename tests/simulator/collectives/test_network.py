"""Ways between cores: how long they are, and what they load, against adding up one by one."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from tests.simulator.collectives.test_cost import mesh_of
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.simulator.collectives import collective_cost
from tilesmith.simulator.collectives.network import Network
from tilesmith.simulator.collectives.transfers import Lanes, Transfers, Ways


@pytest.mark.parametrize("extents", [(8,), (4, 4), (3, 5), (2, 4), (2, 2, 3)])
def test_a_way_along_a_torus_is_the_shortest(extents: tuple[int, ...]) -> None:
    mesh = mesh_of("torus", "x".join(map(str, extents)), 1)
    ways = Lanes([tuple(range(mesh.cores))]).pairs
    routes = Network(mesh).routes(ways)
    places = list(product(*map(range, extents)))
    for source, target, route in zip(ways.sources, ways.targets, routes, strict=True):
        apart = [abs(a - b) for a, b in zip(places[source], places[target], strict=True)]
        shortest = [min(d, n - d) for d, n in zip(apart, extents, strict=True)]
        assert len({link for link, _ in route}) == len(route) == sum(shortest)


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2u.48xlarge", "trn3.gen2", "lpu1.node"])
def test_loads_are_those_of_all_ways_one_by_one(name: str) -> None:
    network = Network(load_mesh(name))
    rng = np.random.default_rng(1)
    sources, targets = rng.integers(0, network.mesh.cores, (2, 300), dtype=np.int32)
    keep = sources != targets
    ways = Ways(sources[keep], targets[keep])
    for share in (0.5, rng.random(len(ways))):
        transfers = Transfers(ways, share)
        loads: defaultdict[int, float] = defaultdict(float)
        for (source, target, part), route in zip(transfers, network.routes(ways), strict=True):
            for resource, rate in route:
                loads[resource] += part / rate
            loads[network.memory_of(source)] += 2 * part / network.memory_rate
            loads[network.memory_of(target)] += 3 * part / network.memory_rate
        engines, links, memory = network.busiest(transfers, 2, 3)
        found = [value for key, value in loads.items() if network.is_engine(key)]
        assert engines == pytest.approx(max(found, default=0.0))
        assert links == pytest.approx(max(loads[k] for k in loads if k >= network.mesh.cores))
        assert memory == pytest.approx(max(value for key, value in loads.items() if key < 0))


def test_two_thousand_cores_are_costed_whatever_their_group() -> None:
    """One port in and out of a switch: p - 1 parts of the tensor pass each, whoever takes part."""
    mesh = mesh_of("switch", 4096, 1).with_settings({"net.hop_us": 0})
    for group in (tuple(range(2048)), tuple(range(0, 4096, 2)), tuple(range(2047))):
        gathered = collective_cost(mesh, "all_gather", 1e9, group)
        assert gathered.seconds == pytest.approx((1 - 1 / len(group)) * 1e9 / 10e9, rel=1e-6)

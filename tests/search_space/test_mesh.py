"""Meshes: what is known of those that ship, numbering of cores, groups, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesmith.search_space.meshes.mesh import load_mesh, mesh_names, parse_mesh
from tilesmith.search_space.support.errors import TargetError

CHIPS = {  # AWS's pages of the instances: chips, cores, GiB of device memory
    "trn1.2xlarge": (1, 2, 32),
    "trn1.32xlarge": (16, 32, 512),
    "trn1n.32xlarge": (16, 32, 512),
    "inf2.xlarge": (1, 2, 32),
    "inf2.8xlarge": (1, 2, 32),
    "inf2.24xlarge": (6, 12, 192),
    "inf2.48xlarge": (12, 24, 384),
    "trn2.3xlarge": (1, 8, 96),
    "trn2.48xlarge": (16, 128, 1536),
    "trn2u.48xlarge": (64, 512, 6144),
    "trn3.gen1": (64, 512, 9216),
    "trn3.gen2": (144, 1152, 20736),
}

PLAIN = """
core = "trn1"
levels = ["board"]
memory = {gib = 16, gbps = 100.0}
board = {members = 4, topology = "ring", gbps = 10.0, hop_us = 1.0}
collective = {start_us = 0.0, slices = 2, link_efficiency = 1.0, reduce_passes = 1}
"""


def test_instances_have_the_published_chips_cores_and_memory() -> None:
    for name, (chips, cores, gib) in CHIPS.items():
        mesh = load_mesh(name)
        assert (mesh.chips, mesh.cores) == (chips, cores), name
        assert mesh.chip_gib * mesh.chips == gib, name
        assert mesh.cores_per_chip == mesh.target.integer("cores_per_chip"), name
    assert set(CHIPS) <= set(mesh_names())


def test_every_fact_of_a_shipped_mesh_says_where_it_is_from() -> None:
    for name in CHIPS:
        for fact, entry in load_mesh(name).data.facts:
            assert entry.source and entry.trust in "VSF?", f"{name}: {fact}"


def test_cores_are_numbered_from_the_inside_out() -> None:
    chip, torus, _ = load_mesh("trn1.32xlarge").levels
    assert [chip.member_of(core) for core in (0, 1, 2)] == [0, 1, 0]
    assert [torus.member_of(core) for core in (0, 1, 2, 31)] == [0, 0, 1, 15]


def test_a_chip_without_a_level_of_its_own_is_a_core() -> None:
    mesh = parse_mesh("four", PLAIN)
    assert (mesh.chips, mesh.cores_per_chip, mesh.cores) == (4, 1, 4)
    assert mesh.with_settings({"board.members": "6"}).cores == 6
    assert mesh.with_settings({"core.sbuf.mib": "48"}).target.integer("sbuf.mib") == 48


def test_groups_divide_the_cores() -> None:
    mesh = parse_mesh("four", PLAIN)
    assert mesh.groups(2) == ((0, 1), (2, 3))
    assert mesh.groups(2, stride=2) == ((0, 2), (1, 3))
    with pytest.raises(TargetError, match=r"4 cores.*groups of 3.*allowed: 1, 2, 4"):
        mesh.groups(3)
    with pytest.raises(TargetError, match=r"names core 4; cores 0 to 3 are allowed"):
        mesh.check_group((0, 4))
    with pytest.raises(TargetError, match="twice"):
        mesh.check_group((1, 1))


def test_a_core_may_be_a_file_beside_the_mesh(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('family = "systolic"\n[array]\nrows = 8\n')
    (tmp_path / "rack.toml").write_text(PLAIN.replace('"trn1"', '"mine.toml"'))
    assert load_mesh(str(tmp_path / "rack.toml")).target.integer("array.rows") == 8


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('core = "trn1"', ""), "names no core"),
        (('levels = ["board"]', ""), "does not list its levels"),
        (('["board"]', "[]"), "has no levels"),
        (("members = 4", 'members = "4x"'), "'4x' is no number of members"),
        (("members = 4", 'members = "2x2"'), "a ring has one"),
        (('"ring"', '"star"'), "one of ring, torus, switch, all_to_all is expected"),
        (("gbps = 10.0", "gbps = 0"), "moves nothing"),
        (("hop_us = 1.0", 'hop_us = 1.0, ports = "chip"'), "one of core is expected"),
        (("gib = 16, ", ""), "has no 'memory.gib'"),
        (("slices = 2, ", ""), "has no 'collective.slices'"),
        (("core =", "core ="), None),
        (("4,", "4,,"), "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(change: tuple[str, str], sentence: str) -> None:
    text = PLAIN.replace(*change)
    if sentence is None:
        parse_mesh("four", text)
        return
    with pytest.raises(TargetError, match=sentence):
        parse_mesh("four", text)


def test_unknown_meshes_and_files_are_refused() -> None:
    with pytest.raises(TargetError, match=r"unknown mesh 'trn9'; one of .*trn1\.32xlarge"):
        load_mesh("trn9")
    with pytest.raises(TargetError, match="cannot be read"):
        load_mesh("nowhere.toml")
    with pytest.raises(TargetError, match="out of range"):
        load_mesh("trn1.32xlarge").with_settings({"torus.hop_us": "-1"})
    with pytest.raises(TargetError, match=r"'100000x100000' are more members than the 65,536"):
        _ = load_mesh("trn1.32xlarge").with_settings({"torus.members": "100000x100000"}).levels


def test_what_the_core_says_of_links_is_said_once() -> None:
    node, rack = load_mesh("lpu1.node"), load_mesh("lpu1.rack")
    assert (rack.chips, rack.with_settings({"system.members": "145"}).chips) == (72, 10440)
    for mesh in (node, rack):
        level = mesh.levels[0]
        links, clock = mesh.target.number("c2c.gbps"), mesh.target.number("clock.ghz") * 1e3
        assert level.gbps == 7 * links
        assert level.hop_us == pytest.approx(mesh.target.number("delay.link") / clock)
        faster = mesh.with_settings({"core.c2c.gbps": "30", "core.delay.link": "90"})
        assert faster.levels[0].gbps == 210
        assert faster.levels[0].hop_us == pytest.approx(0.1)
    over = rack.levels[1]
    assert over.hop_us == pytest.approx(3 * rack.levels[0].hop_us), "hops of a step"
    with pytest.raises(TargetError, match=r"delay\.wire"):
        _ = node.with_settings({"node.hop": "delay.wire"}).levels

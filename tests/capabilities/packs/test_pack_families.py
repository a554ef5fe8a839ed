"""Packs for targets of other families."""

from tests.capabilities.packs.made_up import pack_with, schedule
from tilesmith.capabilities.packs.file_format import lines_of, pack_of
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.workloads.workload import Workload


def test_machines_of_other_families_are_packed_too() -> None:
    trn1, workload = load_target("trn1"), Workload.parse("softmax shape=128x512")
    usual = default_of(workload, trn1)
    one = schedule(workload, trn1, config=usual, measured_by="simulator")
    pack = pack_with((trn1, one), name="p.jsonl")
    assert pack_of("\n".join(lines_of(pack)).encode(), "p.jsonl") == pack

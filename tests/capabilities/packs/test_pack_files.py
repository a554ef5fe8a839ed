"""The file of a pack: the same for the same pack, and refused in a sentence where it is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.capabilities.packs.made_up import FAR, MATMUL, machine, pack_with, schedule
from tilesmith.capabilities.packs.file_format import (
    lines_of,
    pack_of,
    read_pack,
    rounded,
    write_pack,
)
from tilesmith.capabilities.packs.making import merged
from tilesmith.records import TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError

HERE = machine()
OTHER = machine(processor="znver2")
PACK = pack_with(
    (HERE, schedule(MATMUL, HERE)), (OTHER, schedule(MATMUL, OTHER)), (HERE, schedule(FAR, HERE))
)


def text_of(lines: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode()


def test_a_pack_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "made-up.jsonl"
    assert write_pack(PACK, path) == path.stat().st_size
    assert read_pack(path) == PACK
    lines = path.read_text().splitlines()
    assert lines == list(lines_of(read_pack(path)))
    assert len(lines) == 1 + 2 + 3, "one machine or one schedule a line"


def test_the_order_of_what_is_put_in_changes_nothing() -> None:
    turned = pack_with(
        (HERE, schedule(FAR, HERE)),
        (OTHER, schedule(MATMUL, OTHER)),
        (HERE, schedule(MATMUL, HERE)),
    )
    assert list(lines_of(turned)) == list(lines_of(PACK))


def test_of_two_schedules_of_one_workload_the_faster_stays() -> None:
    slow, fast = (pack_with((HERE, schedule(MATMUL, HERE, s))) for s in (2e-5, 1e-5))
    assert merged("m", [slow, fast, PACK]).schedules == merged("m", [PACK, slow, fast]).schedules
    (kept,) = merged("m", [slow, fast]).schedules
    assert kept.latency == 1e-5


def test_samples_are_few_and_keep_their_median() -> None:
    samples = tuple(1e-5 + 1e-8 * number for number in range(101))
    record = TuningRecord("matmul", "cpu", Config.of(), MeasureResult("ok", "hardware", samples))
    kept = rounded(record).result
    assert len(kept.samples) == 9
    assert kept.latency == pytest.approx(record.latency, rel=1e-3)
    assert (kept.samples[0], kept.samples[-1]) == (1e-5, 1.1e-5)


BROKEN = (
    ({"format": "tilesmith-records"}, {}, "is not a pack"),
    ({"version": 2}, {}, "has version '2'.*upgrade"),
    ({"version": True + 10**30}, {}, "has version '1000"),
    ({}, {"workload": "matmul m=" + "9" * 30}, "the key of no workload"),
    ({}, {"workload": "matmul\x00"}, "NUL"),
    ({}, {"target": "cpu-00000000"}, "a machine that no line above describes"),
    ({}, {"samples": [1e400]}, "not a number of seconds"),
    ({}, {"samples": [-1.0]}, "not a number of seconds"),
    ({}, {"samples": []}, "neither 'latency_s' nor 'samples'"),
    ({}, {"default_s": 0}, "a default that takes 0 s"),
    ({}, {"default_s": None}, "not a number of seconds"),
    ({}, {"threads": 10**20}, "not a positive integer"),
    ({}, {"config": [1]}, "not an object"),
    ({}, {"config": {"m_tile": 0.5}}, "neither integer nor text"),
    ({}, {"schedule": "guessed"}, "one of searched, measured is expected"),
    ({}, {"created_at": "yesterday"}, "not a day"),
    ({}, {"path": "/etc/passwd"}, "the unknown key 'path'"),
)


@pytest.mark.parametrize(("header", "line", "said"), BROKEN)
def test_a_broken_pack_is_one_sentence(
    header: dict[str, Any], line: dict[str, Any], said: str
) -> None:
    lines = [json.loads(one) for one in lines_of(PACK)]
    lines[0] |= header
    lines[-1] |= line
    with pytest.raises(InputError, match=said) as refused:
        pack_of(text_of(lines), "p.jsonl")
    assert "\n" not in str(refused.value) and "p.jsonl" in str(refused.value)


MACHINES = (
    ({"isa.name": "/tmp/other.toml"}, r"'/tmp/other.toml' is the name of no instruction set"),
    ({"isa.name": "mmx"}, "mmx"),
    ({"l1.kib": 10**30}, "out of range"),
    ({"l1.kib": "many"}, "is not of type int"),
    ({"l1.kib": 64}, "calls the machine"),
    ({"weight.kg": 3}, "has no 'weight.kg'"),
)


@pytest.mark.parametrize(("facts", "said"), MACHINES)
def test_a_machine_is_one_that_can_be(facts: dict[str, Any], said: str) -> None:
    lines = [json.loads(one) for one in lines_of(PACK)]
    lines[1]["facts"] |= facts
    with pytest.raises(InputError, match=rf"line 2 .*{said}"):
        pack_of(text_of(lines), "p.jsonl")


def test_a_target_is_named_and_no_file() -> None:
    lines = [json.loads(one) for one in lines_of(PACK)]
    lines[1] |= {"family": "trainium", "name": "../trn1.toml"}
    with pytest.raises(InputError, match=r"line 2 .* is the name of no target"):
        pack_of(text_of(lines), "p.jsonl")


def test_no_bytes_are_a_pack_that_are_none() -> None:
    for content in (b"", b"\xff\xfe", b"[" * 100_000, b'{"format": "tilesmith-pack"}', b"null"):
        with pytest.raises(InputError):
            pack_of(content, "p.jsonl")

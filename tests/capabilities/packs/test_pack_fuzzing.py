"""Whatever becomes of a pack's bytes, it is refused in a sentence, or its schedules are legal."""

from __future__ import annotations

import json

import numpy as np

from tests.capabilities.packs.made_up import FAR, MATMUL, NEAR, machine, pack_with, schedule
from tilesmith.capabilities.packs.checking import unfit_schedules
from tilesmith.capabilities.packs.file_format import lines_of, pack_of
from tilesmith.capabilities.packs.lookup import PackRecords
from tilesmith.codegen.programs.structures import space_of
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.search_space.support.errors import InputError

HERE = machine()
TWIN = machine(threads=64)
TEXT = "\n".join(lines_of(pack_with((HERE, schedule(MATMUL, HERE)), (TWIN, schedule(FAR, TWIN)))))

TOKENS = (
    "1e999", "-1", "0", "9" * 40, "9" * 5000, "null", "true", "{}", "[]", '"../../etc/passwd"',
    '"\\ud800"', "NaN", "Infinity", '"a.toml"', '"cpu"', "[" * 2000, "1.5", '""', "4096", '"²"',
)  # fmt: skip
CASES = 600


def mutated(rng: np.random.Generator) -> bytes:
    """The pack with one to three changes: of a value, a byte, a line."""
    text = TEXT
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(4)
        lines = text.split("\n")
        if kind == 0:  # another value where one was
            values = [i for i, letter in enumerate(text) if letter == ":"]
            start = values[rng.integers(len(values))] + 1
            end = min((i for i in (text.find(",", start), text.find("}", start)) if i > 0),
                      default=len(text))  # fmt: skip
            text = text[:start] + TOKENS[rng.integers(len(TOKENS))] + text[end:]
        elif kind == 1:  # a letter
            place = int(rng.integers(len(text)))
            text = text[:place] + chr(int(rng.integers(1, 0x250))) + text[place + 1 :]
        elif kind == 2:  # a line twice, or somewhere else
            lines.insert(int(rng.integers(len(lines) + 1)), lines[rng.integers(len(lines))])
            text = "\n".join(lines)
        else:  # a number
            digits = [i for i, letter in enumerate(text) if letter.isdigit()]
            place = digits[rng.integers(len(digits))]
            text = text[:place] + str(rng.integers(10)) * int(rng.integers(3)) + text[place + 1 :]
    return text.encode()


def test_a_mutated_pack_is_refused_or_its_schedules_are_legal() -> None:
    rng = np.random.default_rng(27)
    refused = kept = 0
    for _ in range(CASES):
        content = mutated(rng)
        try:
            pack = pack_of(content, "p.jsonl")
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 600
            refused += 1
            continue
        kept += 1
        chooser = ScheduleChooser(HERE, PackRecords(None, [pack], HERE), 1)
        for workload in (MATMUL, NEAR, FAR):
            assert chooser.best(workload).config in space_of(workload, HERE)
        list(unfit_schedules(pack))  # says what it says
    assert refused > CASES // 4 and kept > CASES // 20


def test_every_end_that_is_cut_off_is_a_smaller_pack_or_none() -> None:
    whole = {json.dumps(json.loads(line)) for line in TEXT.split("\n")}
    for end in range(0, len(TEXT), 97):
        try:
            pack = pack_of(TEXT[:end].encode(), "p.jsonl")
        except InputError:
            continue
        assert {json.dumps(json.loads(line)) for line in lines_of(pack)} <= whole

"""Iterations copied from those before are what writing them out gives, to the last operand."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.trainium.codegen.isa.instructions import (
    ACCESS_COLUMNS,
    OPERANDS,
    InstructionStream,
)
from tilesmith.families.trainium.codegen.kernel.repetition import Repetition
from tilesmith.families.trainium.codegen.selection import from_program
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")


def resolved(stream: InstructionStream) -> list[np.ndarray]:
    """The instructions with their operands in full, whatever the accesses are numbered."""
    table = stream.accesses
    columns = [table[name] for name in (*ACCESS_COLUMNS, "allocation")]
    accesses = np.concatenate([np.stack(columns, 1), table["count"], table["stride"]], 1)
    accesses = np.concatenate([accesses, np.full((1, accesses.shape[1]), -1)])
    rows = [stream.rows[name] for name in stream.rows if name not in OPERANDS]
    operands = [accesses[stream.rows[name]] for name in OPERANDS]
    return [*rows, *operands, stream.immediates, stream.wait_start, stream.waits]


def both(monkeypatch: pytest.MonkeyPatch, text: str, sampled: int = 1) -> int:
    """Compare streams with and without copies; how many instructions were copied."""
    workload, copied = Workload.parse(text), []
    space, repeat = space_of(workload, TARGET), Repetition.repeat

    def counting(self, period, times):
        copied.append(len(period.rows) * times)
        repeat(self, period, times)

    monkeypatch.setattr(Repetition, "repeat", counting)
    for config in (default_of(workload, TARGET), *space.sample(np.random.default_rng(2), sampled)):
        monkeypatch.setattr(from_program, "FEWEST", 5)
        short = instruction_stream(workload, TARGET, config)
        monkeypatch.setattr(from_program, "FEWEST", 1 << 30)
        long = instruction_stream(workload, TARGET, config)
        assert short.allocations == long.allocations
        for one, other in zip(resolved(short), resolved(long), strict=True):
            np.testing.assert_array_equal(one, other)
    return sum(copied)


@pytest.mark.parametrize("text", [
    "attention m=32 n=32 k=64 heads=48 dtype=bfloat16",  # heads, temporaries by turns
    "attention m=1000 n=600 k=16",  # blocks of queries, the last one short
    "attention m=16 n=5000 k=8 mask=shared",  # blocks of keys, masks staged
    "rms_norm shape=1300x64 epilogue=residual",
    "layer_norm shape=1152x40 const=scale",
    "matmul m=64 n=64 k=40 batch=20 tb=1",  # pipelined: iterations overlap
    "conv2d c=16 h=20 w=20 oc=16 kh=3 kw=3 pad=1 n=12 const=weight",  # frames
])  # fmt: skip
def test_copied_iterations_are_those_written_out(monkeypatch, text):
    both(monkeypatch, text)


@pytest.mark.parametrize("text, least", [
    ("attention m=32 n=32 k=64 heads=96 dtype=bfloat16", 200),
    ("attention m=2048 n=512 k=32 dtype=bfloat16", 200),
])  # fmt: skip
def test_most_of_a_long_loop_is_copied(monkeypatch, text, least):
    assert both(monkeypatch, text, sampled=0) > least

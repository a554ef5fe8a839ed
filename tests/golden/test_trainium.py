"""Operators on a Trainium-like core as text: the loop IR, and the instructions that come of it.

Shapes are tiny, so that a change can be read as a diff; what streams compute is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.families.trainium.codegen.isa.text import to_text
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.program import print_program
from tilesmith.search_space.ir.transforms.simplification import simplify
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")

EXAMPLES = {
    "matmul": "matmul m=4 n=6 k=5 epilogue=bias,relu",
    "matmul_parts": "matmul m=130 n=3 k=200 ta=1",
    "conv": "conv2d c=3 h=4 w=4 oc=5 kh=3 kw=3 pad=1 const=weight",
    "softmax": "softmax shape=3x7",
    "layer_norm": "layer_norm shape=3x8",
    "rms_norm": "rms_norm shape=3x8",
    "attention": "attention m=4 n=6 k=8",
    "transpose": "transpose shape=5x7 perm=1x0",
    "gather": "gather shape=9x4 indices=3",
    "pad": "pad shape=3x5 before=1x2 after=0x1",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_and_their_instructions(name: str, golden: Callable[[str, str], None]) -> None:
    workload = Workload.parse(EXAMPLES[name])
    config = default_of(workload, TARGET)
    program = lowered(workload, TARGET, config)
    program = replace(program, body=simplify(program.body))
    golden(f"trainium/{name}_program.txt", print_program(program))
    golden(f"trainium/{name}_stream.txt", to_text(instruction_stream(workload, TARGET, config)))

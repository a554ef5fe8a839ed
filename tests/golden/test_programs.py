"""One matmul, two machines: native loops for AVX-512 and tiles for a systolic array, as text.

Both come from the same compute definition and the same primitives. The text is golden, the meaning
is interpreted against numpy, and the systolic program is verified against its target's limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import default_of, lowered, space_of, structure_program
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Program, print_program
from tilesmith.search_space.ir.transforms.simplification import simplify
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, VerificationError
from tilesmith.search_space.workloads.epilogue import reference
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

SYSTOLIC = load_target("systolic")
AVX512 = cpu_target("avx512", "avx512", "x86_64-unknown-linux-gnu")
Golden = Callable[[str, str], None]


def tiles(workload: Workload, config: Config | None = None) -> Program:
    """The systolic program of a configuration (default: the template's), trivial loops removed."""
    chosen = config or default_of(workload, SYSTOLIC)
    program = lowered(workload, SYSTOLIC, chosen)
    return replace(program, body=simplify(program.body))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("square", "matmul m=512 n=1024 k=512 ta=1"),
        ("tails", "matmul m=300 n=1000 k=500 ta=1 tb=1 epilogue=bias,gelu,residual"),
    ],
)
def test_systolic_program(name: str, text: str, golden: Golden) -> None:
    program = tiles(Workload.parse(text))
    verify(program, SYSTOLIC)
    golden(f"systolic_{name}.txt", print_program(program))


BLOCKED = Config.of(
    algorithm="blocked", pack_b="panels", block_order="n,m,k", tile_order="nm",
    m_tile=12, n_vectors=2, k_unroll=4, n_block=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "m_block", "k_block"),
    [
        ("square", "matmul m=512 n=512 k=512 const=b", 512, 512),
        ("tails", "matmul m=37 n=19 k=23 epilogue=bias,relu", 37, 23),
    ],
)
def test_native_program(name: str, text: str, m_block: int, k_block: int, golden: Golden) -> None:
    workload = Workload.parse(text)
    config = Config.of({**BLOCKED, "m_block": m_block, "k_block": k_block})
    program = finish(lowered(workload, AVX512, config))
    verify(program, AVX512)
    golden(f"native_{name}.txt", print_program(program))


def test_symbolic_program(golden: Golden) -> None:
    """Lowered once, tile sizes still symbols: what thousands of configurations share."""
    workload = Workload.parse("matmul m=512 n=512 k=512 const=b")
    structure = space_of(workload, AVX512).structure(BLOCKED)
    program = structure_program(workload, AVX512, structure)
    golden("native_symbolic.txt", print_program(program))


@given(
    st.tuples(*[st.integers(1, 11)] * 3),
    st.sampled_from((1, 2)),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.sampled_from(("", "epilogue=relu", "epilogue=bias,residual", "epilogue=residual,scale")),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_systolic_configurations_compute_the_product(
    mnk: tuple[int, ...], batch: int, transposes: tuple[int, ...], epilogue: str, seed: int
) -> None:
    m, n, k = mnk
    ta, tb = transposes
    text = f"matmul m={m} n={n} k={k} batch={batch} ta={ta} tb={tb} {epilogue}"
    workload, rng = Workload.parse(text), np.random.default_rng(seed)
    template = template_of("matmul")
    (config,) = space_of(workload, SYSTOLIC).sample(rng)
    program = tiles(workload, config)
    verify(program, SYSTOLIC)
    arrays = {o.name: rng.standard_normal(o.shape) for o in template.operands(workload)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    product = template.reference(workload, arrays)
    expected = reference(workload.epilogue, product, arrays, template.channel_axis(workload))
    found = interpret(program, arrays)[program.parameters[-1].name]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_defaults_fit_and_use_the_whole_array() -> None:
    for text in (
        "matmul m=4096 n=4096 k=4096 ta=1",
        "matmul m=1 n=1 k=1",
        "matmul m=64 n=70000 k=9",
    ):
        workload = Workload.parse(text)
        verify(tiles(workload), SYSTOLIC)
    config = default_of(Workload.parse("matmul m=512 n=1024 k=512"), SYSTOLIC)
    assert (config["m_tile"], config["n_tile"], config["k_tile"]) == (128, 512, 128)


def test_a_smaller_machine_is_respected() -> None:
    workload = Workload.parse("matmul m=512 n=1024 k=512")
    small = SYSTOLIC.with_settings({"array.rows": "32", "array.cols": "64", "psum.banks": "16"})
    with pytest.raises(VerificationError, match="a bank holds 1024"):
        verify(tiles(workload), small)
    config = default_of(workload, small)
    assert (config["m_tile"], config["n_tile"], config["k_tile"]) == (64, 256, 32)
    verify(lowered(workload, small, config), small)
    with pytest.raises(ConfigError, match="knob 'k_tile' cannot be 128"):
        lowered(workload, small, Config.of({**config, "k_tile": 128}))

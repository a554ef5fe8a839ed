"""What routed experts cost, against rows dealt out one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.capabilities.planning.test_architectures import PUBLISHED, read
from tilesmith.capabilities.planning.architecture import Experts, ProductOperator
from tilesmith.capabilities.planning.deployment import Deployment
from tilesmith.capabilities.planning.estimates.experts import BLOCK, expert_work, row_efficiency
from tilesmith.capabilities.planning.estimates.steps import step_parts
from tilesmith.search_space.meshes.mesh import load_mesh


def mixture(count: int, active: int) -> Experts:
    return Experts("experts", count, active, (ProductOperator("expert", 64, 64),))


@pytest.mark.parametrize("count, active", [(8, 2), (64, 6), (128, 8), (256, 8)])
def test_blocks_are_enough_however_rows_choose(count: int, active: int) -> None:
    """A program is compiled before rows choose: its blocks must do for the worst choice."""
    rng = np.random.default_rng(3)
    experts = mixture(count, active)
    for rows in (BLOCK, 1000, 4096):
        work = expert_work(experts, rows, decodes=False)
        for skew in (0.0, 1.0, 3.0):
            weight = rng.random(count) ** skew
            visits = rng.multinomial(rows * active, weight / weight.sum())
            needed = -(-visits // BLOCK)
            assert needed.sum() * BLOCK <= work.rows
            assert needed.sum() <= work.loaded, "a block loads its expert anew"
        assert work.rows == work.fetched == BLOCK * work.loaded
        assert work.rows < rows * active + count * BLOCK, "at most a block of padding an expert"


@pytest.mark.parametrize("count, active", [(8, 2), (128, 8)])
def test_few_rows_load_what_they_choose_and_many_all(count: int, active: int) -> None:
    experts = mixture(count, active)
    loads = [expert_work(experts, rows, decodes=True).loaded for rows in range(1, 200)]
    assert loads == [min(rows * active, count) for rows in range(1, 200)]
    rows = [expert_work(experts, rows, decodes=True).rows for rows in range(1, 200)]
    assert all(less <= more for less, more in pairwise(rows))


def test_groups_share_experts() -> None:
    experts = mixture(256, 8)
    assert expert_work(experts, 1, 64, decodes=True).loaded == 4, "dealt experts are not picked"
    alone, dealt = (expert_work(experts, 8192, groups, decodes=False) for groups in (1, 16))
    assert dealt.loaded == 16 - 1 + -(-(8192 * 8 // 16 - 15) // BLOCK)
    assert 8192 * 8 / 16 <= dealt.rows < alone.rows


def test_short_rows_of_experts_take_longer() -> None:
    target = load_mesh("trn2.48xlarge").target
    found = [row_efficiency(target, size) for size in (64, 128, 512, 2048, 8192, 1 << 20)]
    assert all(less < more for less, more in pairwise(found)) and found[-1] > 0.99
    assert row_efficiency(load_mesh("lpu1.node").target, 64) == 1.0


def test_a_token_of_a_wide_group_pays_for_its_short_rows() -> None:
    """The same experts over more cores: each core holds shorter rows of each expert."""
    model, mesh = read(PUBLISHED["Qwen 3 30B A3B"][0]), load_mesh("trn2.48xlarge")
    each = [
        step_parts(model, Deployment(mesh, n), 1, 1, 1024).parts["weights"] * n for n in (4, 64)
    ]
    assert each[1] > 2 * each[0], "core-seconds"


def test_rows_of_prompts_pass_memory_on_their_way_to_experts() -> None:
    """DeepSeek V3, 256 tokens: 259 blocks of 512 rows of 7,168 numbers, three times each; a token
    alone goes to its experts as it is."""
    model, on = read(PUBLISHED["DeepSeek V3"][0]), Deployment(load_mesh("trn2.48xlarge"), 64)
    parts = step_parts(model, on, 1, 256, 256, 256).parts
    assert on.cores_each == 2
    moved = 58 * 3 * 259 * 512 * 7168 * 2
    memory = on.mesh.chip_gbps * 1e9 / on.mesh.cores_per_chip * 2
    assert moved / memory < parts["routing"] < 2 * moved / memory
    assert "routing" not in step_parts(model, on, 1, 1, 256).parts

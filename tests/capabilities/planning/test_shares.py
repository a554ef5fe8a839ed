"""What cores hold, against dealing out heads and columns one by one; and bounds no estimate
breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.capabilities.planning.test_architectures import PUBLISHED, read
from tilesmith.capabilities.planning.architecture import AttentionOperator, ProductOperator
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.estimate import estimate, step_seconds
from tilesmith.capabilities.planning.estimates.memory import memory_of
from tilesmith.capabilities.planning.estimates.shares import (
    cached_share,
    heads_share,
    product_share,
)
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import InputError

GIB = 2**30


def fullest(things: int, cores: int) -> int:
    """Things on the core that has most of them, dealt in turns."""
    held = [0] * cores
    for thing in range(things):
        held[thing % cores] += 1
    return max(held)


@pytest.mark.parametrize("cores", [1, 2, 8, 24, 32, 64])
@pytest.mark.parametrize("heads", [8, 32, 40, 64])
def test_the_fullest_core_has_whole_heads(heads: int, cores: int) -> None:
    query = ProductOperator("query", 5120, heads * 128, "columns", unit=128)
    output = ProductOperator("output", heads * 128, 5120, "rows", unit=128)
    attention = AttentionOperator("attention", heads, 8, 128, 128)
    most = fullest(heads, cores)
    assert product_share(query, cores) == product_share(output, cores) == 5120 * most * 128
    assert heads_share(attention, cores) == most
    held = fullest(8, cores) if cores % 8 == 0 or 8 % cores == 0 else most
    assert cached_share(attention, cores) == 256 * held, "copied where there are fewer"


@pytest.mark.parametrize("heads, groups", [(32, 8), (40, 8), (64, 8), (48, 1), (32, 32)])
def test_heads_of_keys_that_cores_do_not_divide_are_copied(heads: int, groups: int) -> None:
    """To one on each core where an engine can and cores are a multiple of them, else until each
    head of queries has its own; and never fewer than dealing them out would leave on a core."""
    attention = AttentionOperator("attention", heads, groups, 128, 128)
    keys = ProductOperator(
        "key, value", 4096, groups * 128, "heads", unit=128, times=2, heads=heads
    )
    for cores in (1, 2, 4, 8, 12, 16, 24, 32):
        for full in (False, True):
            held = cached_share(attention, cores, full) // 256
            assert product_share(keys, cores, full) == 2 * 4096 * held * 128, "cached as projected"
            assert fullest(groups, cores) <= held <= heads_share(attention, cores)
            if groups % cores == 0:
                assert held == groups // cores
            elif full or cores % groups:
                assert held == heads_share(attention, cores), "as if heads were not grouped"
            else:
                assert held == 1


def test_engines_of_meshes_copy_heads_of_keys_in_their_own_way() -> None:
    """Llama 2 70B on 32 cores: 64 heads of queries are 2 a core, and so are those of keys on trn1,
    where trn2's engine keeps one of the 8."""
    llama, load = read(PUBLISHED["Llama 2 70B"][0]), DeploymentLoad(4, 1024, 1024)
    on = {name: Deployment(load_mesh(name), 32) for name in ("trn1.32xlarge", "trn2.48xlarge")}
    caches = {name: memory_of(llama, d, load).cache for name, d in on.items()}
    assert caches["trn1.32xlarge"] * GIB == pytest.approx(4 * 2048 * 80 * 64 * 256 * 2)
    assert caches["trn2.48xlarge"] * GIB == pytest.approx(4 * 2048 * 80 * 32 * 256 * 2)
    other = on["trn1.32xlarge"].mesh.with_settings({"serving.full_heads": False})
    less = replace(on["trn1.32xlarge"], mesh=other)
    assert memory_of(llama, less, load).cache == caches["trn2.48xlarge"]
    assert step_seconds(llama, less, 4, 1, 2048) < step_seconds(
        llama, on["trn1.32xlarge"], 4, 1, 2048
    )


def test_a_latent_is_on_every_core() -> None:
    deepseek = read(PUBLISHED["DeepSeek V3"][0])
    deployment = Deployment(load_mesh("trn2u.48xlarge"), 64, expert=64, weights="fp8")
    memory = memory_of(deepseek, deployment, DeploymentLoad(1, 100, 100))
    assert memory.cache * GIB == pytest.approx(64 * 61 * 576 * 200 * 2)


def test_memory_is_the_checkpoint_and_the_cache() -> None:
    llama = read(PUBLISHED["Llama 2 7B"][0])
    memory = memory_of(
        llama, Deployment(load_mesh("trn1.32xlarge"), 8), DeploymentLoad(3, 100, 100)
    )
    assert memory.weights * GIB == pytest.approx(llama.parameters * 2, rel=2e-3)
    assert memory.cache * GIB == pytest.approx(2 * 32 * 4096 * 200 * 3 * 2)
    whole = memory_of(
        llama, Deployment(load_mesh("trn1.32xlarge"), 8, 4), DeploymentLoad(3, 100, 100)
    )
    assert whole.weights == pytest.approx(memory.weights), "stages hold a model once"
    twice = memory_of(
        llama, Deployment(load_mesh("trn1.32xlarge"), 8, data=2), DeploymentLoad(4, 100, 100)
    )
    assert twice.weights == pytest.approx(2 * memory.weights), "replicas hold it each"


@pytest.mark.parametrize("mesh", ["trn1.32xlarge", "trn2.48xlarge"])
@pytest.mark.parametrize("model", ["Llama 3 8B", "Mixtral 8x7B", "Qwen 3 30B A3B"])
def test_no_token_is_faster_than_memory(mesh: str, model: str) -> None:
    architecture = read(PUBLISHED[model][0])
    deployment = Deployment(load_mesh(mesh), 8)
    chips = deployment.cores / deployment.mesh.cores_per_chip
    token = step_seconds(architecture, deployment, 1, 1, 2048)
    table = architecture.vocabulary * architecture.width  # of the embedding one row is read
    least = 2 * (architecture.active_parameters - table) / (deployment.mesh.chip_gbps * 1e9 * chips)
    assert token > least
    assert step_seconds(architecture, deployment, 8, 1, 2048) > token
    assert step_seconds(architecture, deployment, 1, 1, 4096) > token
    narrow = replace(deployment, weights="int8")
    assert step_seconds(architecture, narrow, 1, 1, 2048) < token


def test_stages_cost_a_token_nothing_but_what_they_hand_over() -> None:
    llama, mesh = read(PUBLISHED["Llama 3 8B"][0]), load_mesh("trn1.32xlarge")
    one, four = Deployment(mesh, 8), Deployment(mesh, 8, pipeline=4)
    alone, staged = (step_seconds(llama, d, 1, 1, 512) for d in (one, four))
    assert alone < staged < 1.05 * alone


def test_degrees_count_logical_cores_where_there_are() -> None:
    mesh = load_mesh("trn2.48xlarge")
    logical, physical = Deployment(mesh, 64), Deployment(mesh, 128)
    assert (logical.cores, physical.cores) == (128, 128)
    assert (logical.cores_each, physical.cores_each) == (2, 1)
    load = DeploymentLoad(1, 128, 128)
    llama = read(PUBLISHED["Llama 3 70B"][0])
    times = [estimate(llama, d, load).parts["token"]["weights"] for d in (logical, physical)]
    assert times[0] < times[1] < 1.4 * times[0], "64 heads over 128 cores are held twice"


def test_what_no_mesh_holds_may_fit_several() -> None:
    llama = read(PUBLISHED["Llama 3.1 405B"][0])
    deployment = Deployment(load_mesh("trn1.32xlarge"), 32)
    with pytest.raises(InputError, match="the smallest mesh that would do is"):
        estimate(llama, deployment, DeploymentLoad(1, 128, 128))
    with pytest.raises(InputError, match="with tensor degree 32 it would fit"):
        estimate(llama, replace(deployment, tensor=8, weights="int8"), DeploymentLoad(1, 128, 128))
    heavy = DeploymentLoad(16, 1024, 130000)
    with pytest.raises(InputError, match=r'settings={"instances.members": "\d+"} tp= 32 pp='):
        estimate(llama, deployment, heavy)


def test_encoders_run_with_the_prompt_alone() -> None:
    """A token of Whisper reads the decoder and what it keeps: keys of each layer's sound, too."""
    whisper, mesh = read(PUBLISHED["Whisper large v3"][0]), load_mesh("inf2.xlarge")
    on, load = Deployment(mesh, 2), DeploymentLoad(3, 4, 100)
    found = estimate(whisper, on, load)
    decoder = sum(layer.parameters for layer in whisper.layers if not layer.once)
    least = 2 * (decoder - 448 * 1280) / (mesh.chip_gbps * 1e9) * 1e3
    assert least < found.tpot_ms < 6 * least
    encoder = sum(layer.parameters for layer in whisper.layers if layer.name == "encoder")
    work, pace = 2 * 3 * 1500 * encoder, 2 * 92e12  # of two cores, products alone
    assert found.ttft_ms > found.tpot_ms + work / pace * 1e3
    kept = 3 * 32 * 2560 * (1500 + 104) * 2
    assert memory_of(whisper, on, load).cache * GIB == pytest.approx(kept)
    longer = estimate(whisper, on, DeploymentLoad(3, 4, 300))
    assert longer.ttft_ms == pytest.approx(found.ttft_ms, rel=0.02)


def test_the_prompt_of_an_encoder_and_decoder_is_what_it_reads() -> None:
    t5, on = read(PUBLISHED["T5 3B"][0]), Deployment(load_mesh("inf2.24xlarge"), 8)
    short, long = (estimate(t5, on, DeploymentLoad(1, tokens, 64)) for tokens in (128, 2048))
    assert long.ttft_ms > 3 * short.ttft_ms
    assert short.tpot_ms < long.tpot_ms < 2 * short.tpot_ms, "it attends across to more"
    assert memory_of(t5, on, DeploymentLoad(1, 128, 64)).cache * GIB == pytest.approx(
        24 * 192 * 8192 * 2
    )

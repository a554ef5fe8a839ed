"""What has to hold on every machine, whatever the constants: more hardware is not slower, more
work is not faster, and no term is faster than what its bytes take."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.capabilities.planning.test_architectures import PUBLISHED, read
from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.deployment import Deployment
from tilesmith.capabilities.planning.estimates.steps import step_parts
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

LLAMA_8B, LLAMA_70B = (read(PUBLISHED[name][0]) for name in ("Llama 3 8B", "Llama 3 70B"))
WHOLE = {"trn1.32xlarge": 32, "inf2.48xlarge": 24, "trn2.48xlarge": 64}
LINKS = {"trn1.32xlarge": "torus", "inf2.48xlarge": "ring", "trn2.48xlarge": "torus"}


def token(deployment: Deployment, batch: int = 1, context: int = 2048) -> dict[str, float]:
    return dict(step_parts(LLAMA_70B, deployment, batch, 1, context).parts)


def prompt(deployment: Deployment, batch: int = 1, rows: int = 1024) -> dict[str, float]:
    return dict(step_parts(LLAMA_70B, deployment, batch, rows, rows, rows).parts)


@pytest.mark.parametrize("mesh", WHOLE)
def test_more_work_takes_longer(mesh: str) -> None:
    whole = Deployment(load_mesh(mesh), WHOLE[mesh])
    for times in (
        [sum(token(whole, batch).values()) for batch in (1, 2, 4, 8, 16, 32, 64)],
        [sum(token(whole, 4, context).values()) for context in (128, 512, 2048, 8192, 32768)],
        [sum(prompt(whole, batch).values()) for batch in (1, 4, 16, 64)],
        [sum(prompt(whole, 1, rows).values()) for rows in (128, 512, 2048, 8192)],
    ):
        assert all(less < more for less, more in pairwise(times))


@pytest.mark.parametrize("mesh", WHOLE)
def test_more_cores_are_never_slower_at_their_own_part(mesh: str) -> None:
    """Where heads of keys are not copied to as many as of queries."""
    found = load_mesh(mesh)
    if "serving.full_heads" in found.data:
        found = found.with_settings({"serving.full_heads": False})
    degrees = [n for n in (1, 2, 4, 8, 16, 24, 32, 64) if found.cores % n == 0]
    steps = [token(Deployment(found, n)) for n in degrees if n <= WHOLE[mesh]]
    for name in ("weights", "attention", "products"):
        assert all(less[name] >= more[name] for less, more in pairwise(steps)), name
    sums = [parts.get("collectives", 0.0) for parts in steps]
    assert sums[0] == 0.0, "one core, logical or not, sums nothing"
    assert all(sums[1:]) and max(sums) < 1.5 * min(sums[1:]), "a hop or two, whatever the group"


@pytest.mark.parametrize("mesh", WHOLE)
def test_faster_memory_and_links_are_never_slower(mesh: str) -> None:
    found = load_mesh(mesh)
    base = Deployment(found, WHOLE[mesh])
    for name in ("memory.gbps", f"{LINKS[mesh]}.gbps"):
        number = found.number(name)
        times = [
            [sum(f(replace(base, mesh=found.with_settings({name: int(number * k)}))).values())
             for f in (token, prompt)]
            for k in (0.5, 1.0, 2.0)
        ]  # fmt: skip
        for less, more in pairwise(times):
            assert less[0] >= more[0] and less[1] >= more[1]


@pytest.mark.parametrize("mesh", WHOLE)
@pytest.mark.parametrize("weights", ["bf16", "int8", "fp8"])
def test_no_stream_or_sum_is_faster_than_its_bytes(mesh: str, weights: str) -> None:
    found = load_mesh(mesh)
    whole = Deployment(found, WHOLE[mesh], weights=weights)  # type: ignore[arg-type]
    chips = whole.cores / found.cores_per_chip
    numbers = LLAMA_70B.parameters - 2 * LLAMA_70B.vocabulary * LLAMA_70B.width
    width = 2 if weights == "bf16" else 1
    parts, pace = token(whole, 16), found.chip_gbps * 1e9 * chips
    assert parts["weights"] > numbers * width / pace
    assert parts["attention"] > 16 * 2048 * 80 * 8 * 256 * 2 / pace, "keys and values of 8 heads"
    sent = 160 * 2 * 1024 * LLAMA_70B.width * 2 * (1 - 1 / whole.cores)
    assert prompt(whole)["collectives"] > sent / (found.levels[0].gbps * 1e9 * whole.cores_each)


def test_integers_are_converted_and_narrow_floats_are_not() -> None:
    """Vector engines convert slower than engines bring bytes; products take 8 bits as they are."""
    for mesh, degree in WHOLE.items():
        wide, integer, narrow = (
            token(Deployment(load_mesh(mesh), degree, weights=w))["weights"]
            for w in ("bf16", "int8", "fp8")
        )
        assert wide > integer > narrow > wide / 2, "the head stays wide"


@pytest.mark.parametrize("mesh", WHOLE)
def test_one_sequence_more_never_makes_a_token_faster(mesh: str) -> None:
    """Nor a prompt: at each size the cheapest algorithm is taken for what it costs in all."""
    whole = Deployment(load_mesh(mesh), WHOLE[mesh], pipeline=1)
    for of, most in ((token, 65), (prompt, 33)):
        times = [sum(of(whole, batch).values()) for batch in range(1, most)]
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(times))


def test_products_of_fp8_are_as_fast_as_the_machine_makes_them() -> None:
    """trn2 takes two numbers of 8 bits for one of 16, trn3 four, trn1 one; the head stays wide."""
    for mesh, times in {"trn1.32xlarge": 1, "trn2.48xlarge": 2, "trn3.gen1": 4}.items():
        wide, narrow = (
            prompt(Deployment(load_mesh(mesh), 32, weights=weights), 4, 2048)["products"]
            for weights in ("bf16", "fp8")
        )
        assert narrow * times == pytest.approx(wide, rel=0.02)


def test_norms_of_prompts_are_shared_where_the_engine_does() -> None:
    mesh = load_mesh("trn2.48xlarge")
    whole = Deployment(mesh, 64)
    alone = replace(whole, mesh=mesh.with_settings({"serving.sequence_parallel": False}))
    assert prompt(alone)["norms"] > 60 * prompt(whole)["norms"]
    assert token(alone, 8)["norms"] == token(whole, 8)["norms"]


def test_prompts_that_are_alone_are_fused_where_the_engine_does() -> None:
    """Llama 2 13B on inf2; not by trn1's facts, nor StarCoder. Scores of two go through memory."""
    mesh = load_mesh("inf2.48xlarge")
    here = Deployment(mesh, 24)
    apart = replace(here, mesh=mesh.with_settings({"serving.fused_alone": False}))

    def attention(on: Deployment, batch: int, name: str = "Llama 2 13B") -> float:
        model = read(PUBLISHED[name][0])
        return step_parts(model, on, batch, 4096, 4096, cache=8192).parts["attention"]

    assert attention(here, 2) > 4 * attention(here, 1)
    assert attention(apart, 1) > 4 * attention(here, 1)
    assert attention(apart, 2) == attention(here, 2)
    assert attention(apart, 1, "StarCoder") == attention(here, 1, "StarCoder")
    assert attention(apart, 1, "Llama 3 8B") == attention(here, 1, "Llama 3 8B")
    assert not Deployment(load_mesh("trn1.32xlarge")).says("serving.fused_alone")


def _prompt_attention(name: str, batch: int, tokens: int, mesh: str = "trn1.32xlarge") -> float:
    model, on = read(PUBLISHED[name][0]), Deployment(load_mesh(mesh), 32)
    return step_parts(model, on, batch, tokens, tokens, cache=tokens).parts["attention"]


def test_scores_that_stay_on_chip_are_products_and_a_softmax_of_all_of_them() -> None:
    """Llama 3 8B, one head a core: masked ones, too, as the mask is an input of the graph."""
    on = load_mesh("trn1.32xlarge").target
    kernels = ("softmax shape=1024x4096", "matmul m=1024 k=2048 n=1024 const=b")
    softmax, product = (
        1e-6 * simulate(Workload.parse(f"{text} dtype=bfloat16"), on, None, "timeline").latency_us
        for text in kernels
    )
    scores = 32 * 2 * 4096 * 4096
    taken = scores * (softmax / (1024 * 4096) + 256 * product / (1024 * 2048 * 1024))
    assert _prompt_attention("Llama 3 8B", 2, 4096) == pytest.approx(taken, rel=0.1)


def test_prompts_of_llama_have_a_kernel_beyond_4096_tokens() -> None:
    """Those of several sequences on trn1; no less is taken than by 4,096 tokens, nor by one."""
    times = [_prompt_attention("Llama 2 13B", batch, 8192) for batch in (1, 2, 3, 4, 8)]
    assert times == sorted(times)
    assert times[3] == _prompt_attention("Llama 2 13B", 4, 4096)
    assert times[4] < 1.1 * _prompt_attention("Llama 2 13B", 8, 4097)
    far = [_prompt_attention("Llama 2 13B", 8, tokens) for tokens in (2**16, 2**17)]
    assert far[1] == pytest.approx(4 * far[0], rel=0.01)
    starcoder = [_prompt_attention("StarCoder", 4, tokens) for tokens in (4096, 8192)]
    assert starcoder[1] > 3.5 * starcoder[0]


def test_the_layout_of_llama_3_keeps_scores_on_chip() -> None:
    """A vocabulary tells it from Llama 2 70B, whose scores go through memory."""
    model = read(PUBLISHED["Llama 3 70B"][0])
    older, on = replace(model, vocabulary=32000), Deployment(load_mesh("trn1.32xlarge"), 32)

    def attention(of: Architecture, tokens: int) -> float:
        return step_parts(of, on, 4, tokens, tokens, cache=tokens).parts["attention"]

    assert attention(older, 2048) > 4 * attention(model, 2048)
    assert attention(older, 256) == attention(model, 256)


def test_what_is_not_a_product_costs_a_pass_what_kernels_of_its_shape_do() -> None:
    """BERT's twelve layers, 16 sentences of 128 words: activations, residuals and softmax; and
    weights stream while others are multiplied by."""
    bert, on = read(PUBLISHED["BERT base"][0]), Deployment(load_mesh("trn1.2xlarge"))

    def kernel(text: str) -> float:
        workload = Workload.parse(f"{text} dtype=bfloat16")
        return 12e-6 * simulate(workload, on.mesh.target, None, "timeline").latency_us

    parts = step_parts(bert, on, 16, 128, 128).parts
    gelu = kernel("elementwise shape=2048x3072 expression=gelu(x0)")
    residual = kernel("elementwise shape=2048x768 expression=add(x0,x1)")
    assert parts["pointwise"] == pytest.approx(gelu + 2 * residual, rel=0.1)
    softmax = 16 * 12 * 128 / 2**15 * kernel(f"softmax shape={2**15}x128")
    assert parts["attention"] > softmax
    assert parts["attention"] == pytest.approx(softmax, rel=0.2)
    one, many = (sum(step_parts(bert, on, n, 128, 128).parts.values()) for n in (1, 2))
    alone, both = (step_parts(bert, on, n, 128, 128).parts for n in (1, 64))
    assert "products" not in alone
    assert both["products"] > 100 * both["weights"]
    assert one < many < 2 * one


@pytest.mark.parametrize("name", ["Llama 3 8B", "Llama 2 13B", "Mixtral 8x7B", "StarCoder"])
@pytest.mark.parametrize("tensor", [2, 8, 32])
def test_a_longer_prompt_never_takes_less(name: str, tensor: int) -> None:
    """Nor does one sequence more; whatever kernels engines have for which lengths."""
    model, on = read(PUBLISHED[name][0]), Deployment(load_mesh("trn1.32xlarge"), tensor)
    lengths = (128, 512, 1024, 2048, 3072, 4095, 4096, 8192)
    times = [[step_parts(model, on, batch, n, n, n).seconds for n in lengths] for batch in (1, 8)]
    for one in times:
        assert all(less < more for less, more in pairwise(one))
    assert all(few < many for few, many in zip(*times, strict=True))


@pytest.mark.parametrize("name", ["GPT-2", "Llama 2 13B", "StarCoder", "Mixtral 8x7B"])
@pytest.mark.parametrize("tensor", [1, 8, 32])
def test_no_length_is_a_cliff(name: str, tensor: int) -> None:
    """Not where scores stop fitting the chip, either: 32 tokens more never make each of them take
    much longer."""
    model, on = read(PUBLISHED[name][0]), Deployment(load_mesh("trn1.32xlarge"), tensor)
    for batch in (1, 8):
        each = [step_parts(model, on, batch, n, n, n).seconds / n for n in range(256, 4097, 32)]
        assert max(more / less for less, more in pairwise(each)) < 1.25

"""The Python API does what commands do: with executables, by the same keywords, and typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilesmith as ts
from tests.end_to_end.command import save_model, succeed
from tilesmith.capabilities.planning.estimates.estimate import Estimate

SERVED = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def executable(model: Path) -> Any:
    return ts.compile(model, database=None)


def test_an_executable_is_profiled(executable: ts.Executable) -> None:
    report = ts.profile(executable, time_limit=0.1)
    assert report.total_us > 0 and any("MatMul" in op.name or op.workload for op in report.ops)
    assert ts.profile(executable, seconds=0.1).total_us > 0


def test_an_executable_is_compared_with_the_model_it_is_of(
    executable: ts.Executable, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # the model is not here: the executable knows where it was
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    report = ts.compare(executable, inputs={"x": x})
    assert report.clean and {"h", "y"} & {tensor.name for tensor in report.tensors}
    loaded = onnx.load(str(model))
    of_memory = ts.compile(loaded, database=None)
    with pytest.raises(ts.ModelError, match="source="):
        ts.compare(of_memory)
    assert ts.compare(of_memory, source=loaded).clean
    of_memory.save(tmp_path / "m.tsm")
    assert ts.compare(ts.load(tmp_path / "m.tsm"), source=model).clean


def test_an_executable_is_benched_and_simulated(executable: ts.Executable) -> None:
    found = ts.bench(executable, against=["onnxruntime"], runs=5, fill="ones")
    assert len(found.own.samples) == 5 and found.max_rel_err is not None
    assert found.max_rel_err < 1e-4
    on_trn1 = ts.compile(executable_source(executable), "trn1", database=None)
    assert ts.simulate(on_trn1).latency_us > 0
    with pytest.raises(ts.InputError, match="not in this machine"):
        ts.bench(on_trn1)


def executable_source(executable: ts.Executable) -> Path:
    from tilesmith.jobs.subjects.subject import model_of

    found = model_of(executable)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"against": ["onnxruntim"]}, "unknown peer 'onnxruntim'; did you mean"),
        ({"fill": "twos"}, "unknown fill 'twos'"),
        ({"runs": 0}, "runs = 0 is out of range"),
        ({"concurrency": 0}, "concurrency = 0 is out of range"),
        ({"second": 1}, "bench.. has no argument 'second'"),
    ],
)
def test_what_a_bench_cannot_be_told(
    executable: ts.Executable, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(ts.InputError, match=said):
        ts.bench(executable, **asked)


def test_a_plan_says_what_the_command_says(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SERVED))
    found = ts.plan(config, "trn1.2xlarge", tp=2, input_tokens=64, output_tokens=16)
    assert isinstance(found, Estimate)
    words = ("--mesh", "trn1.2xlarge", "--tp", 2, "--input-tokens", 64, "--output-tokens", 16)
    said = succeed("plan", config, *words)
    assert said["ttft_us"] == pytest.approx(1e3 * found.ttft_ms)
    swept = ts.plan(config, "trn1.2xlarge", tp=(1, 2), batch=(1, 2))
    assert not isinstance(swept, Estimate) and len(swept.to_json()["points"]) == 4
    with pytest.raises(ts.InputError, match="ttft_p50= bounds a load"):
        ts.plan(config, "trn1.2xlarge", ttft_p50=3.0)
    with pytest.raises(ts.InputError, match="did you mean 'input_tokens'"):
        ts.plan(config, "trn1.2xlarge", input_token=3)  # type: ignore[call-arg]


def test_hardware_is_explored_as_by_the_command() -> None:
    text = "matmul m=128 n=128 k=128"
    found = ts.explore("trn1", {"sbuf.mib": (12, 24)}, operators=text, jobs=1)
    assert len(found.designs) >= 2 and found.front


def test_axes_of_a_mesh_have_keywords_of_their_own(model: Path) -> None:
    specs = {"x": "data,-"}
    by_name = ts.shard(model, "trn1.2xlarge", data=2, specs=specs)
    assert by_name.axes == ts.shard(model, "trn1.2xlarge", degrees={"data": 2}, specs=specs).axes


def test_a_target_is_shown_in_a_line() -> None:
    shown = repr(ts.resolve_target("trn1"))
    assert "trn1" in shown and len(shown) < 100

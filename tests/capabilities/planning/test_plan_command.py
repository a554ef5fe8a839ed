"""`tilesmith plan` for one point: what scripts read, what people read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.capabilities.planning.test_architectures import PUBLISHED
from tilesmith.command_line import command_line

POINT = (
    "--mesh trn1.32xlarge --tp 32 --batch 1 --input 128 --output 8064 --max-sequence 8192 "
    "--weights int8"
)


def plan(folder: Path, fields: dict[str, Any], words: str) -> Result:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return CliRunner().invoke(command_line, ["plan", str(path), *words.split()])


def test_a_point_for_scripts(tmp_path: Path) -> None:
    result = plan(tmp_path, PUBLISHED["Llama 3 8B"][0], f"{POINT} --json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"ttft_us", "tpot_us", "tokens_per_s", "memory_gib", "bound"} <= set(found)
    answer = (found["ttft_us"] + 8063 * found["tpot_us"]) / 1e3
    assert found["tokens_per_s"] >= 8064 / answer * 1e3, "shorter sequences are served faster"


def test_a_point_for_people(tmp_path: Path) -> None:
    result = plan(tmp_path, PUBLISHED["Llama 3 8B"][0], POINT)
    assert "8.03 B parameters" in result.output and "collectives" in result.output
    rows = [line.split() for line in result.output.split("\n\n")[1].splitlines()[1:]]
    for column in (2, 4):
        assert sum(float(row[column]) for row in rows) == pytest.approx(100, abs=0.1), "all parts"


@pytest.mark.parametrize(
    ("model", "words", "sentence"),
    [
        ("Llama 3 8B", "--mesh trn1.32xlarge --tp 12", "has 32 cores, which groups of 12"),
        ("Llama 3 8B", "--mesh trn1.32xlarge --tp 64", "are more than mesh 'trn1.32xlarge' has"),
        ("Llama 3 8B", "--mesh trn9 --tp 1", "unknown mesh 'trn9'"),
        ("Llama 3 8B", "--mesh trn1.32xlarge --input 100 --max-sequence 64", "allow 228"),
        ("Llama 3.1 405B", "--mesh trn1.32xlarge --tp 32", "smallest mesh that would do is"),
        ("Mixtral 8x7B", "--mesh trn1.32xlarge --ep 3", "cannot be dealt over 3 groups"),
        ("Mixtral 8x7B", "--mesh trn1.32xlarge --tp 32 --ep 16", "an expert degree of at most 8"),
        ("Llama 3 8B", "--mesh trn1.32xlarge --tp 8 --ep 2", "has no experts, which"),
        ("Llama 3 8B", "--mesh trn2.48xlarge --tp 1 --pp 64", "degree of at most 32 is allowed"),
        ("GPT-2", "--mesh trn1.2xlarge --tp 2 --output 1000", "has learnt 1024 positions"),
        ("Llama 3 8B", "--mesh trn1.32xlarge --tp 32 --ttft-p50 5", "--ttft-p50 bounds a load"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, model: str, words: str, sentence: str) -> None:
    result = plan(tmp_path, PUBLISHED[model][0], words)
    assert result.exit_code == 2
    assert sentence in result.stderr and result.stderr.count("\n") == 1


QUANTISED = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int4": {"quant_method": "awq", "bits": 4},
    "int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "int4 of bitsandbytes": {"load_in_4bit": True},
    "fp8 of tensors": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
    },
    "int8 of tensors": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
    },
    "int4 of modelopt": {"quant_algo": "W4A16_AWQ"},
}


@pytest.mark.parametrize("kind", QUANTISED)
def test_weights_are_as_wide_as_the_checkpoint_keeps_them(tmp_path: Path, kind: str) -> None:
    fields = {**PUBLISHED["Llama 3 8B"][0], "quantization_config": QUANTISED[kind]}
    words = "--mesh trn1.32xlarge --tp 32 --json"
    found = json.loads(plan(tmp_path, fields, words).stdout)
    assert found["weights"] == kind.split()[0]
    told = json.loads(plan(tmp_path, fields, f"{words} --weights bf16").stdout)
    assert told["weights"] == "bf16" and told["memory_gib"] > found["memory_gib"]


def test_weights_kept_in_an_unknown_way_have_to_be_named(tmp_path: Path) -> None:
    fields = {**PUBLISHED["Llama 3 8B"][0], "quantization_config": {"quant_method": "aqlm"}}
    words = "--mesh trn1.32xlarge --tp 32"
    result = plan(tmp_path, fields, words)
    assert result.exit_code == 2 and "'aqlm' (quantization_config)" in result.stderr
    assert plan(tmp_path, fields, f"{words} --weights int4").exit_code == 0

"""`tilesmith plan` beyond one point: sweeps, loads, and what does not go together."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.capabilities.planning.test_architectures import PUBLISHED
from tilesmith.command_line import command_line

LOAD = "--mesh trn1.32xlarge --tp 8,32 --input 200 --output 50 --requests 200"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of Llama 3 8B."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(PUBLISHED["Llama 3 8B"][0]))
    return path


def plan(config: Path, words: str) -> Result:
    return CliRunner().invoke(command_line, ["plan", str(config), *words.split()])


def test_nothing_given_is_all_that_divides_and_fits(config: Path) -> None:
    found = json.loads(plan(config, "--mesh trn1.32xlarge --json").stdout)
    seen = {(p["tp"], p["pp"]) for p in found["points"]}
    assert {(1, 1), (32, 1), (4, 8), (1, 32)} <= seen
    assert {p["batch"] for p in found["points"]} == {1, 2, 4, 8, 16, 32, 64}
    assert {p["ep"] for p in found["points"]} == {1}, "no experts, nothing to vary"
    best = min(found["points"], key=lambda p: p["tpot_us"])
    assert best["tpot_us"] == min(found["points"][n]["tpot_us"] for n in found["fronts"]["tpot"])


def test_a_sweep_for_people_and_files(config: Path, tmp_path: Path) -> None:
    files = f"--csv {tmp_path / 'a.csv'} --page {tmp_path / 'a.html'}"
    words = (
        f"--mesh trn1.32xlarge --mesh inf2.48xlarge --tp 8 --batch 1,4 --weights bf16,int8 {files}"
    )
    result = plan(config, words)
    assert result.exit_code == 0, result.output
    assert "of 8 points are on a front" in result.stdout and "inf2.48xlarge" in result.stdout
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 9
    assert "tilesmith plan" in (tmp_path / "a.html").read_text()


def test_a_load_names_the_fewest_chips(config: Path) -> None:
    words = f"{LOAD} --requests-per-second 30 --ttft-p99 500 --tpot-p99 30 --json"
    found = json.loads(plan(config, words).stdout)
    assert found["served"]["ttft_us"]["p99"] <= 500e3 and found["served"]["tpot_us"]["p99"] <= 30e3
    assert found["chips"] == found["replicas"] * found["tp"] // 2
    assert found["usd_per_hour"] == 21.5 * found["instances"]
    tokens = 30 * 50
    assert found["usd_per_million_tokens"] == pytest.approx(
        found["usd_per_hour"] / tokens / 3600 * 1e6
    )
    assert plan(config, words).stdout == plan(config, words).stdout, (
        "the same seed, the same answer"
    )


def test_answers_of_one_token_have_no_time_between_tokens(config: Path) -> None:
    words = "--mesh trn1.32xlarge --tp 8 --requests-per-second 1 --output 1 --requests 50"
    found = json.loads(plan(config, f"{words} --tpot-p99 1 --json").stdout)
    assert found["replicas"] == 1 and found["served"]["tpot_us"]["p99"] is None


def test_models_without_tokens_are_swept_by_latency(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED["BERT base"][0]))
    page = tmp_path / "a.html"
    words = f"--mesh trn1.2xlarge --batch 1,2,4,8,16 --page {page} --json"
    found = json.loads(plan(path, words).stdout)
    front = [found["points"][number] for number in found["fronts"]["tpot"]]
    assert min(p["latency_us"] for p in found["points"]) in [p["latency_us"] for p in front]
    assert len(front) > 1 and found["fronts"]["ttft"] == []
    assert "ms a pass" in page.read_text()
    refused = plan(path, "--mesh trn1.2xlarge --requests-per-second 1")
    assert refused.exit_code == 2 and "makes no tokens" in refused.stderr


def test_a_trace_is_a_load(config: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{n / 4},{100 + n},{20 + n % 7}" for n in range(60)]
    trace.write_text("\n".join(["arrival,input,output", *lines]))
    words = f"--mesh trn1.32xlarge --tp 8 --trace {trace} --ttft-p99 900"
    assert "deployment: trn1.32xlarge tp=8 bf16" in plan(config, words).stdout
    found = json.loads(plan(config, f"{words} --json").stdout)
    assert found["served"]["requests"] == 60 and found["replicas"] == 1
    plan(config, f"{words} --csv {tmp_path / 'served.csv'}")
    rows = list(csv.DictReader((tmp_path / "served.csv").read_text().splitlines()))
    assert [(float(r["arrival_s"]), r["input"], r["output"]) for r in rows[:2]] == [
        (0.0, "100", "20"), (0.25, "101", "21"),
    ]  # fmt: skip
    mean = sum(float(row["ttft_ms"]) for row in rows) / 60
    assert mean == pytest.approx(found["served"]["ttft_us"]["mean"] / 1e3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--mesh trn1.32xlarge --ttft-p99 5", "--ttft-p99 bounds a load"),
        ("--mesh trn1.32xlarge --max-chips 5", "--max-chips bounds a load"),
        ("--mesh trn1.32xlarge --cheapest", "--cheapest is of a load"),
        (
            "--mesh trn1.32xlarge --tp 0",
            "no number from 1 to 1,000,000,000, nor several with commas, or 'all'",
        ),
        ("--mesh trn1.32xlarge --batch 1,x", "no number from 1 to"),
        ("--mesh trn1.32xlarge --weights int9", "'int9' is not one of"),
        ("--mesh trn1.32xlarge --csv /no/where.csv", "its folder does not exist"),
        ("--mesh trn1.32xlarge --tp 8 --prices /no.toml --page a.html", "cannot be read"),
        ("--mesh trn1.32xlarge --tp 8 --batch 1 --prices /no.toml", "cannot be read: No such file"),
        (
            "--mesh lpu1.node --tp 8",
            "no mesh of such chips that is known would do; of others, 'inf2",
        ),
        (f"{LOAD} --requests-per-second 0", "is 0; above 0 and at most 1,000,000"),
        (f"{LOAD} --requests-per-second 1e300", "is 1e+300; above 0 and at most 1,000,000"),
        (f"{LOAD} --requests-per-second 1 --ttft-p99 0", "--ttft-p99 is 0 ms, which nothing"),
        (f"{LOAD} --requests-per-second 1 --trace t.csv", "are two loads"),
        (f"{LOAD} --trace t.csv", "--input-tokens and its spread are for --arrivals to say"),
        (f"{LOAD} --requests-per-second 1 --batch 1,2", "--batch has several values"),
        (f"{LOAD} --requests-per-second 1 --dp 2", "--dp is what a load's answer says"),
        (f"{LOAD} --requests-per-second 1 --max-sequence 100", "allow 250"),
        (f"{LOAD} --requests-per-second 9 --tpot-p99 1", "nothing serves 9 requests a second"),
        (f"{LOAD} --requests-per-second 900 --max-chips 4", "more than the 4 allowed"),
        ("--mesh trn3.gen1 --requests-per-second 1 --cheapest", "names a price for trn3.gen1"),
        ("--mesh trn1.32xlarge --tp 8 --trace no.csv", "trace 'no.csv' cannot be read"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(config: Path, words: str, sentence: str) -> None:
    result = plan(config, words)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arrival,input\n0,1\n", "has no column 'output'"),
        ("arrival,input,output\n", "holds no request"),
        ("arrival,input,output\n0,1,1\n1,x,2\n", "line 3 of trace"),
        ("arrival,input,output\n-1,1,1\n", "line 2 of trace"),
        ("arrival,input,output\n0,1,0\n", "line 2 of trace"),
        ("arrival,input,output\n0,1\n", "line 2 of trace"),
    ],
)
def test_what_is_no_trace_is_named(config: Path, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    result = plan(config, f"--mesh trn1.32xlarge --tp 8 --trace {tmp_path / 'trace.csv'}")
    assert result.exit_code == 2
    assert sentence in result.stderr and result.stderr.count("\n") == 1


def test_requests_that_come_all_at_once_need_no_more_than_one_replica(
    config: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,input,output\n0,10,10\n")
    result = plan(config, f"--mesh trn1.32xlarge --tp 1 --trace {trace} --json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["chips"] == 1 and "requests that come all at once" in found["load"]


def test_a_trace_with_more_values_than_columns(config: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival,input,output\n0,10,10,4\n")
    result = plan(config, f"--mesh trn1.32xlarge --trace {trace}")
    assert result.exit_code == 2 and "line 2 of trace" in result.stderr

"""What people expect of any command: help, suggestions, completion, versions, spellings, files."""

from __future__ import annotations

import re
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.shell_completion import BashComplete, CompletionItem, get_completion_class
from onnx import TensorProto, helper

import tilesmith as ts
from tests.end_to_end.command import SMALL, invoke, refuse, succeed
from tilesmith.command_line import LazyGroup, command_line

SHAPE = "m=16 n=32 k=8"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["tun"], "'tune'"),
        (["simualte", "--json"], "'simulate'"),
        (["db", "tops"], "top"),
        (["tune", "--trails", "3"], "--trials"),
        (["operators", "matmull"], "'matmul'"),
        (["targets", "trn"], "'trn1'"),
        (["targets", "trn1", "--set", "sbuf.mb=3"], "'sbuf.mib'"),
        (["collectives", "--mesh", "trn1.2xlage"], "'trn1.2xlarge'"),
        (["simulate", "--op", f"matmull {SHAPE}"], "'matmul'"),
        (["simulate", "--op", f"matmul {SHAPE} dtpe=bf16"], "'dtype'"),
        (["simulate", "--op", f"matmul {SHAPE} dtype=blfoat16"], "'bfloat16'"),
        (["simulate", "--op", f"matmul {SHAPE} epilogue=rleu"], "'relu'"),
        (["tune", "--op", SMALL, "--database", "none.db", "--strategy", "evolution"], "'evolutio"),
    ],
)
def test_what_was_meant_is_suggested(words: list[str], meant: str) -> None:
    told = refuse(*words)
    assert "did you mean" in told.lower() and meant in told


def test_knobs_are_suggested() -> None:
    from tilesmith.codegen.programs.structures import default_of, space_of
    from tilesmith.search_space.spaces.config import Config

    workload, target = ts.Workload.parse(SMALL), ts.resolve_target("trn1")
    config = dict(default_of(workload, target))
    name = next(name for name in config if name != "algorithm")
    config[f"{name}s"] = config.pop(name)
    with pytest.raises(ts.ConfigError, match=re.escape(f"did you mean '{name}'")):
        space_of(workload, target).validate(Config.of(config))


def every_command() -> list[list[str]]:
    root, found = click.Context(command_line), [[]]
    for name in command_line.list_commands(root):
        command = command_line.get_command(root, name)
        found += [[name]] if not isinstance(command, click.Group) else []
        found += [[name, one] for one in getattr(command, "commands", ())]
    return found


def test_every_command_has_both_spellings_of_help() -> None:
    for words in every_command():
        short, long = invoke(*words, "-h"), invoke(*words, "--help")
        assert short.exit_code == 0 and short.stdout == long.stdout, words
        assert max(map(len, short.stdout.splitlines())) <= 80, words


def test_help_names_the_choices() -> None:
    told = " ".join(invoke("tune", "-h").stdout.split())
    for names in ("annealing, bayesian, evolutionary", "gradient, round_robin", "trn1, trn2"):
        assert names in told


def test_versions_begin_with_the_product_s() -> None:
    first, *rest = invoke("--version").stdout.splitlines()
    assert first == f"tilesmith, version {ts.__version__}"
    assert "llvmlite" in " ".join(rest) and "Python 3." in " ".join(rest)


def completed(*words: str) -> list[CompletionItem]:
    completing = BashComplete(command_line, {}, "tilesmith", "_TILESMITH_COMPLETE")
    return completing.get_completions(list(words[:-1]), words[-1])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> Path:
    """A shell asks in a folder with a model, an artifact, a database and something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_TILESMITH_COMPLETE", "bash_complete")
    for name in ("small.tsm", "tuning.db", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def test_words_are_completed(shell: Path) -> None:
    def words(*line: str) -> list[str]:
        return [item.value for item in completed(*line)]

    assert words("si") == ["simulate", "sign"]
    assert words("db", "pr") == ["prune"]
    assert words("compile", "--prec") == ["--precision"]
    assert words("compile", "--precision", "b") == ["bf16"]
    assert words("tune", "sm") == ["small.onnx", "small.tsm"]
    assert words("db", "top", "--database", "tu") == ["tuning.db"]
    assert words("tune", "small.onnx", "--target", "trn") == ["trn1", "trn2", "trn3"]
    assert "trn2.48xlarge" in words("shard", "small.onnx", "--mesh", "trn2")
    assert words("simulate", "--op", "mat") == words("operators", "mat") == ["matmul"]
    assert words("simulate", "--op", "matmul m=3 dt") == ["matmul m=3 dtype="]
    assert words("tune", "--strategy", "ev") == ["evolutionary"]
    assert words("simulate", "--target", "trn1", "--set", "sbuf.m") == ["sbuf.mib="]
    (shell / "nested").mkdir()
    assert [item.type for item in completed("tune", "ne")] == ["file"], "the shell's own words"


def test_every_model_target_and_mesh_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tilesmith.cli.completion import Completed

    monkeypatch.setenv("_TILESMITH_COMPLETE", "bash_complete")
    group, seen = command_line, 0
    assert isinstance(group, LazyGroup)
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        for param in command.params:
            if param.name in ("model", "target", "targets", "database", "mesh_names"):
                seen += 1
                assert isinstance(param.type, Completed), (name, param.name)
    assert seen > 15


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_scripts_for_shells(shell_name: str) -> None:
    source = invoke("completion", shell_name).stdout
    assert f"_TILESMITH_COMPLETE={shell_name}_complete" in source and "tilesmith" in source
    assert get_completion_class(shell_name) is not None


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("bf16", "bfloat16"), ("f16", "float16"), ("half", "float16"), ("fp32", "float32"),
        ("FP64", "float64"), ("s8", "int8"), ("u8", "uint8"), ("f8e4m3fn", "float8_e4m3"),
    ],
)  # fmt: skip
def test_element_types_by_other_names(spelled: str, name: str) -> None:
    other, own = (
        ts.Workload.parse(f"transpose shape=4x8 perm=1x0 dtype={d}") for d in (spelled, name)
    )
    assert other == own and spelled not in other.key.split("dtype=")[-1:]


def test_precision_of_a_single_operator() -> None:
    def workload(*options: str) -> str:
        (found,) = succeed("simulate", "--op", f"matmul {SHAPE}", *options)["ops"]
        return str(found["workload"])

    assert workload() == f"matmul {SHAPE}"
    assert workload("--precision", "bf16") == f"matmul {SHAPE} dtype=bfloat16"
    assert workload("--precision", "float16") == f"matmul {SHAPE} dtype=float16"
    assert workload("--precision", "int8") == f"matmul {SHAPE} weights=int8 dtype=uint8"
    told = refuse("simulate", "--op", "softmax shape=4x4", "--precision", "int8")
    assert "operator 'softmax' has no integer form" in told
    told = refuse("simulate", "--op", SMALL, "--precision", "fp16", "--target", "trn1")
    assert "trn1" in told and "bf16" in told


def test_outputs_are_written_as_the_file_is_named(model: Path, tmp_path: Path) -> None:
    one, all_of_them = tmp_path / "out.npy", tmp_path / "out.npz"
    for path in (one, all_of_them):
        succeed("run", model, "--output", path)
    np.testing.assert_array_equal(np.load(one), np.load(all_of_them)["y"])
    assert np.load(one).shape == (4, 6)


def test_several_outputs_are_not_one_array(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4,)) for n in "xab"]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b"])]
    graph = helper.make_graph(nodes, "two", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
              str(tmp_path / "two.onnx"))  # fmt: skip
    result = invoke("run", tmp_path / "two.onnx", "--output", tmp_path / "out.npy")
    assert result.exit_code == 2 and "2 outputs (a, b)" in result.stderr
    assert "name a file that ends in .npz" in result.stderr
    assert not (tmp_path / "out.npy").exists()

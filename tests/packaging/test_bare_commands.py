"""Every command where no extra is installed: it does its work, or one sentence says what it needs.

All commands run in one process, which finds no more than the wheel's own requirements.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import model_of, random
from tests.packaging.test_extras import PROJECT, ROOT, WITHOUT, others
from tilesmith.command_line import command_line

OP = "matmul m=16 n=16 k=16 const=b"
SMALL = ("--target", "trn1", "--trials", "3", "--measure", "simulator")

COMMANDS = (
    ("tune", "--op", OP, *SMALL, "--database", "t.db"),
    ("tune", "m.onnx", *SMALL, "--database", "t.db"),
    ("tune", "--op", OP, *SMALL, "--database", "t.db", "--workers", "2"),
    ("compile", "m.onnx", "-o", "m.tsm"),
    ("compile", "m.onnx", "--emit", "archive", "-o", "m.a"),
    ("compile", "m.mlir", "-o", "l.tsm"),
    ("quantize", "m.onnx", "--data", "x.npz", "-o", "q.onnx"),
    ("sign", "m.tsm", "--key", "missing.pem"),
    ("run", "m.tsm"),
    ("run", "m.onnx"),
    ("bench", "m.tsm", "--seconds", "0.1"),
    ("profile", "m.tsm", "--seconds", "0.2"),
    ("compare", "m.onnx", "--reference", "onnxruntime"),
    ("compare", "m.onnx"),
    ("bisect", "m.onnx"),
    ("measure", "--op", OP, "--target", "trn1"),
    ("space", "--op", OP),
    ("simulate", "--op", OP, "--target", "trn1"),
    ("simulate", "m.onnx", "--target", "lpu1"),
    ("plan", "missing.json"),
    ("shard", "m.onnx", "--mesh", "trn1.2xlarge"),
    ("explore", "--target", "systolic", "--op", OP, "--vary", "array.rows=8,16"),
    ("report", "--database", "t.db", "-o", "r.html"),
    ("dashboard", "--database", "t.db"),
    ("targets",),
    ("targets", "cpu"),
    ("collectives", "--mesh", "trn1.32xlarge"),
    ("operators", "matmul"),
    ("doctor",),
    ("completion", "bash"),
    ("nki", "check", "missing.py::kernel"),
    ("nki", "run", "missing.py::kernel"),
    ("nki", "time", "missing.py::kernel"),
    ("db", "compact", "--older-than", "30d", "--database", "t.db"),
    ("db", "diff", "t.db", "t.db"),
    ("db", "export", "--database", "t.db", "-o", "t.jsonl"),
    ("db", "import", "t.jsonl", "--database", "u.db"),
    ("db", "history", OP, "--database", "t.db"),
    ("db", "jobs", "--database", "t.db"),
    ("db", "knobs", OP, "--database", "t.db"),
    ("db", "machines", "--database", "t.db"),
    ("db", "merge", "u.db", "--database", "t.db"),
    ("db", "prune", "--superseded", "--database", "t.db"),
    ("db", "query", "--database", "t.db"),
    ("db", "query", "--database", "postgresql://localhost:1/x"),
    ("db", "regress", "t.db"),
    ("db", "show", "1", "--database", "t.db"),
    ("db", "stats", "--database", "t.db"),
    ("db", "top", "--database", "t.db"),
    ("db", "verify", "--database", "t.db"),
    ("pack", "check", "p.jsonl"),
    ("pack", "make", "--database", "t.db", "-o", "q.jsonl"),
    ("pack", "merge", "p.jsonl", "p.jsonl", "-o", "q.jsonl"),
    ("pack", "revalidate", "p.jsonl", "-o", "q.jsonl"),
    ("pack", "show"),
    ("models", "list", "--database", "t.db"),
    ("models", "train", "--database", "t.db"),
    ("models", "show", "1", "--database", "t.db"),
    ("models", "use", "1", "--database", "t.db"),
)

NEEDS = {
    ("--workers", "2"): "ray is not installed; install it with: pip install 'tilesmith[ray]'",
    ("shard",): "pip install 'tilesmith[ortools]'",
    ("dashboard",): "pip install 'tilesmith[dashboard]'",
    ("postgresql://localhost:1/x",): "pip install 'tilesmith[postgresql]'",
}
"""What is said where these words are used."""

RUN = """
import contextlib, io, json
sys.path.insert(0, {root!r})
from tilesmith.entry import main
for words in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    sys.argv, code = ["tilesmith", *words], 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:
            code = repr(error)
    print(json.dumps([words, code, out.getvalue()[-500:], err.getvalue()]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[str], int, str]]:
    """Words, exit code and what was said on stderr, of every command."""
    folder = tmp_path_factory.mktemp("bare")
    model = model_of("g (float[4, 8] x) => (float[4, 8] y) { y = MatMul(x, w) }", w=random(8, 8))
    onnx.save(model, str(folder / "m.onnx"))
    (folder / "m.mlir").write_text("module {}\n")
    np.savez(folder / "x.npz", x=random(4, 8))
    code = WITHOUT.format(absent=others(PROJECT["dependencies"])) + RUN.format(
        root=str(ROOT), commands=COMMANDS
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return [(words, code, err) for words, code, _, err in lines]


def _leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            yield from _leaves(one, (*path, name))
    else:
        yield path


def test_every_command_is_tried() -> None:
    groups = ("db", "models", "nki", "pack")
    tried = {words[:2] if words[0] in groups else words[:1] for words in COMMANDS}
    assert set(_leaves(command_line)) == tried


def test_each_is_done_or_one_sentence(answers: list[tuple[list[str], int, str]]) -> None:
    assert len(answers) == len(COMMANDS)
    for words, code, said in answers:
        assert code in (0, 1, 2), (words, code, said)
        assert "Traceback" not in said and "internal error" not in said, (words, said)
        if code == 2:
            assert said.strip().splitlines()[-1].startswith("tilesmith: "), (words, said)


def test_what_is_missing_is_named(answers: list[tuple[list[str], int, str]]) -> None:
    for wanted, sentence in NEEDS.items():
        matching = [a for a in answers if set(wanted) <= set(a[0])]
        assert matching, wanted
        for words, code, said in matching:
            assert code == 2 and sentence in said, (words, said)

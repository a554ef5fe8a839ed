"""Examples that `--help` shows of each command, as they are typed.

Invariant: every command has one, and all are taken by the command they show
(tests/end_to_end/test_help.py).
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "tune": (
        "tilesmith tune model.onnx --database tuning.db --trials 2000",
        "tilesmith tune model.onnx --time-limit 600 --threads 2 --resume",
        "tilesmith tune --op 'matmul m=512 n=512 k=512' --target trn1",
    ),
    "compile": (
        "tilesmith compile model.onnx --database tuning.db -o model.tsm",
        "tilesmith compile model.onnx --shape 'batch=1..64' -o model.tsm",
        "tilesmith compile model.onnx --emit library -o libmodel.so",
    ),
    "quantize": (
        "tilesmith quantize model.onnx --data samples.npz -o model.int8.onnx",
        "tilesmith quantize model.onnx --weights int4 -o model.int4.onnx",
    ),
    "run": (
        "tilesmith run model.tsm --input x=x.npy -o out.npz",
        "tilesmith run model.onnx --database tuning.db --threads 2",
    ),
    "bench": (
        "tilesmith bench model.tsm --against onnxruntime --threads 2",
        "tilesmith bench model.onnx other.onnx --database tuning.db --time-limit 10",
    ),
    "profile": (
        "tilesmith profile model.tsm --page profile.html --trace trace.json",
        "tilesmith profile model.onnx --database tuning.db --runs 50 --top 10",
    ),
    "compare": (
        "tilesmith compare model.onnx --input x=x.npy --sort worst",
        "tilesmith compare model.tsm --reference float64 --tolerance 1e-4",
    ),
    "sign": ("tilesmith sign model.tsm --key key.pem",),
    "bisect": ("tilesmith bisect model.onnx --input x=x.npy --folder fault",),
    "measure": ("tilesmith measure --op 'matmul m=512 n=512 k=512' --database tuning.db",),
    "space": ("tilesmith space --op 'matmul m=512 n=512 k=512' --samples 2000",),
    "simulate": (
        "tilesmith simulate model.onnx --target trn1 --target trn2",
        "tilesmith simulate --op 'softmax shape=128x512' --target trn1 --trace t.json",
        "tilesmith simulate model.onnx --target trn1 --set sbuf.mib=12,24,48",
    ),
    "plan": (
        "tilesmith plan config.json --mesh trn1.32xlarge --tp 32 --input-tokens 1024",
        "tilesmith plan config.json --mesh trn1.32xlarge --requests-per-second 20",
    ),
    "shard": (
        "tilesmith shard model.onnx --mesh trn1.2xlarge",
        "tilesmith shard model.onnx --mesh trn1.32xlarge --data 4 --tensor 8",
    ),
    "explore": ("tilesmith explore --target trn1 --vary sbuf.mib=12:96 --model model.onnx",),
    "db compact": ("tilesmith db compact --database tuning.db --older-than 30",),
    "db diff": ("tilesmith db diff before.db after.db",),
    "db export": ("tilesmith db export --database tuning.db -o trials.jsonl.gz",),
    "db import": ("tilesmith db import trials.jsonl.gz --database tuning.db",),
    "db jobs": ("tilesmith db jobs --database tuning.db",),
    "db machines": ("tilesmith db machines --database tuning.db",),
    "db merge": ("tilesmith db merge other.db --database tuning.db",),
    "db prune": ("tilesmith db prune --database tuning.db --keep 20 --dry-run",),
    "db query": (
        "tilesmith db query --database tuning.db --operator conv2d --status crash",
        "tilesmith db query --database tuning.db --faster-than 50 --csv > fast.csv",
    ),
    "db show": ("tilesmith db show 17 --database tuning.db --assembly",),
    "db stats": ("tilesmith db stats --database tuning.db",),
    "db top": ("tilesmith db top --database tuning.db --operator matmul --sort latency",),
    "db verify": ("tilesmith db verify --database tuning.db --count 50 --heal",),
    "models list": ("tilesmith models list --database tuning.db",),
    "models show": ("tilesmith models show 3 --database tuning.db -o model.json",),
    "models train": ("tilesmith models train --database tuning.db --family trainium",),
    "models use": ("tilesmith models use 3 --database tuning.db",),
    "report": ("tilesmith report --database tuning.db --job 4 --against 3 --page report.html",),
    "dashboard": ("tilesmith dashboard --database tuning.db --port 8765",),
    "targets": (
        "tilesmith targets",
        "tilesmith targets trn1 --set sbuf.mib=48",
    ),
    "collectives": ("tilesmith collectives --mesh trn1.32xlarge --kind all_gather --cores 8",),
    "operators": ("tilesmith operators matmul",),
    "doctor": ("tilesmith doctor",),
    "completion": ("tilesmith completion bash >> ~/.bashrc",),
}
"""By the command's words, lines that a shell takes."""

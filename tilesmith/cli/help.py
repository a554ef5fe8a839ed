"""What `--help` shows of every command: its options in groups, with defaults, and examples.

An option means the same in every command (docs/decisions/0111-one-name-for-one-thing.md), so the
group that it stands in follows from its name alone, and all groups are declared here. What stands
in none is what the command itself is about, and comes first.

Invariants: an option's former names are accepted and shown nowhere. Every command has an example,
as it is typed, and takes it (tests/end_to_end/test_help.py).
"""

from typing import Any

import click

_OWN = "Options"
_GROUPS = {
    "Model and data": "op model space objective input fill shape update precision calibration bits "
    "data random",
    "Hardware": "target set mesh threads chips cores database pack",
    "Search": "trials time-limit early-stopping measure strategy scheduler cost-model resume",
    "Workers": "workers jobs in-flight choosing",
    "Deployment": "tp pp ep dp batch input-tokens output-tokens max-sequence cache prices",
    "Load": "requests-per-second arrivals input-spread output-spread policy step-tokens max-chips "
    "cheapest requests",
    "Bounds of a load": "ttft-p50 ttft-p99 tpot-p50 tpot-p99",
    "Which trials": "workload operator measured-by status config message host machine job "
    "faster-than slower-than since until before older-than latest",
    "Results": "output folder page csv trace",
    "General": "seed json verbose log-level traceback version help",
}
"""Long names of options by the group that shows them, in the order of groups."""

_SMALL = 8
"""A command with fewer options of its own and of groups shows one list."""


class CommandOption(click.Option):
    """An option that still answers to the names it had before.

    Args:
        former: these names.
    """

    def __init__(self, *args: Any, former: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self.former = former

    def get_help_extra(self, ctx: click.Context) -> Any:
        """As click, but a default that is told in words stands as they are."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """As click, with the former names beside those that are shown."""
        shown = self.opts
        self.opts = [*shown, *self.former]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


class Explained(click.Command):
    """A command whose help has groups and examples."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if isinstance(param, click.Option) and param.default == "":
                param.show_default = False  # nothing is no news

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list of options for each group."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (_OWN, *_GROUPS)}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                groups[group_of(param)].append(record)
        shown = {name: records for name, records in groups.items() if records}
        if sum(map(len, shown.values())) < _SMALL:
            shown = {_OWN: [record for records in shown.values() for record in records]}
        for name, records in shown.items():
            with formatter.section(name):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's examples, each a line that a shell takes."""
        super().format_epilog(ctx, formatter)
        examples = EXAMPLES.get(path_of(ctx), ())
        if examples:
            with formatter.section("Examples"):
                for line in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class ExplainedGroup(click.Group, Explained):
    """A group of such commands."""

    command_class = Explained


def group_of(param: click.Parameter) -> str:
    """The group that an option is shown in."""
    names = {name.removeprefix("--") for name in param.opts}
    return next((group for group, text in _GROUPS.items() if names & {*text.split()}), _OWN)


def path_of(ctx: click.Context) -> str:
    """A command's name with those of its groups: "db top"."""
    names = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.append(at.info_name or "")
        at = at.parent
    return " ".join(reversed(names))


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
    "nki time": ("tilesmith nki time silu.py::kernel --inputs x=128x2x96 --page t.html",),
    "nki run": ("tilesmith nki run silu.py::kernel --inputs x=128x2x96 --reference np.py::silu",),
    "nki check": ("tilesmith nki check silu.py::kernel --inputs x=128x2x96:bfloat16",),
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
    "db history": ("tilesmith db history 'matmul m=8 n=8 k=8' --database tuning.db",),
    "db import": ("tilesmith db import trials.jsonl.gz --database tuning.db",),
    "db jobs": ("tilesmith db jobs --database tuning.db",),
    "db knobs": ("tilesmith db knobs 'matmul m=8 n=8 k=8' --database tuning.db",),
    "db machines": ("tilesmith db machines --database tuning.db",),
    "db merge": ("tilesmith db merge other.db --database tuning.db",),
    "db prune": ("tilesmith db prune --database tuning.db --keep 20 --dry-run",),
    "db query": (
        "tilesmith db query --database tuning.db --operator conv2d --status crash",
        "tilesmith db query --database tuning.db --faster-than 50 --csv > fast.csv",
    ),
    "db regress": (
        "tilesmith db regress before.db after.db",
        "tilesmith db regress tuning.db",
    ),
    "db show": ("tilesmith db show 17 --database tuning.db --assembly",),
    "db stats": ("tilesmith db stats --database tuning.db",),
    "db top": ("tilesmith db top --database tuning.db --operator matmul --sort latency",),
    "db verify": ("tilesmith db verify --database tuning.db --count 50 --heal",),
    "models list": ("tilesmith models list --database tuning.db",),
    "models show": ("tilesmith models show 3 --database tuning.db -o model.json",),
    "models train": ("tilesmith models train --database tuning.db --family trainium",),
    "models use": ("tilesmith models use 3 --database tuning.db",),
    "pack check": ("tilesmith pack check cpu.jsonl",),
    "pack make": ("tilesmith pack make --database tuning.db -o cpu.jsonl",),
    "pack merge": ("tilesmith pack merge cpu.jsonl ours.jsonl -o both.jsonl",),
    "pack revalidate": ("tilesmith pack revalidate cpu.jsonl -o here.jsonl",),
    "pack show": ("tilesmith pack show", "tilesmith pack show cpu.jsonl --schedules"),
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

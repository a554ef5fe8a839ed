"""One model for every size of its ranges against models compiled for each size exactly.

    python benchmarks/varying_models.py [bert gpt2 ...] [--model FILE.onnx --shape NAME=1..N ...]
        [--at 1x16 ...] [--database FILE] [--seconds-each 1] [--least] [--json]

The models are transformers' (random weights, a few layers), exported by torch with batch and
sequence left open. Each is compiled once for `batch=1..8 sequence=1..512`, and once for each of the
sizes it is timed at; the two take turns on one pinned core and their outputs are compared, with
torch's, too. The figure is how many times as long the one for every size takes: of medians, or of
the least times where other work disturbs them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import interleave, pinned

SIZES = {"batch": (1, 8), "sequence": (1, 512)}
AT = ("1x1", "1x16", "1x61", "1x128", "1x197", "1x384", "1x512", "2x32", "3x97", "8x16", "8x128")
WIDTH, LAYERS, HEADS = 256, 2, 4

Network = Callable[..., Any]


def bert() -> tuple[Any, tuple[str, ...]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, vocab_size=1000, max_position_embeddings=512,
    )  # fmt: skip
    return BertModel(config), ("input_ids", "attention_mask")


def gpt2() -> tuple[Any, tuple[str, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=1000, n_positions=512,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), ("input_ids",)


NETWORKS = {"bert": bert, "gpt2": gpt2}


def exported(name: str, path: Path) -> Network:
    """Write a network as ONNX with batch and sequence left open; gives it to be called."""
    import torch

    torch.manual_seed(0)
    module, inputs = NETWORKS[name]()
    module.config.use_cache = False

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.inner(**dict(zip(inputs, given, strict=True)))[0]
            return found

    network = Plain().eval()
    example = tuple(torch.ones(3, 17, dtype=torch.int64) for _ in inputs)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network, example, dynamo=True, dynamic_shapes=((dims,) * len(inputs),),
            input_names=inputs, verbose=False,
        )  # fmt: skip
    program.save(str(path))

    def call(*arrays: Any) -> Any:
        with torch.no_grad():
            return network(*map(torch.from_numpy, arrays)).numpy()

    return call


def feeds(model: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """Seeded inputs at some sizes: small whole numbers, the first of each row not zero."""
    rng = np.random.default_rng(sum(sizes.values()))
    found = {}
    for info in model.infos_at(sizes):
        if info.dtype == "float32":
            found[info.name] = rng.standard_normal(info.dims).astype(np.float32)
        else:
            found[info.name] = rng.integers(0, 2, info.dims)
            found[info.name][..., :1] = 1
    return found


def measure(path: Path, options: argparse.Namespace, network: Network | None) -> list[Any]:
    """For each size: milliseconds, how many times those of the exact model, and differences."""
    ranges = {name: tuple(ends) for name, ends in options.sizes.items()}
    asked = {"database": options.database}
    model: Any = ts.compile(path, shapes=ranges, **asked)
    note(
        f"{len(model.recipe.variants)} variants, {model.recipe.constants.size >> 10} KiB of weights"
    )
    found = []
    for text in options.at:
        sizes = dict(zip(ranges, map(int, text.split("x")), strict=True))
        exact: Any = ts.compile(path, shapes={n: (v,) for n, v in sizes.items()}, **asked)
        inputs = feeds(model, sizes)
        one, other = model.at(sizes).bind(inputs), exact.bind(inputs)
        with pinned(1):
            timings = interleave({"varying": one.run, "exact": other.run}, options.seconds_each)
        taken = {n: t.min_ms if options.least else t.median_ms for n, t in timings.items()}
        ours = one.outputs()
        row = {
            "sizes": text, "ms": taken["varying"], "ratio": taken["varying"] / taken["exact"],
            "host": len(model.at(sizes).recipe.report.host_nodes),
            "of_exact": _difference(ours, list(other.outputs().values())),
        }  # fmt: skip
        if network is not None:
            row["of_torch"] = _difference(ours, [network(*inputs.values())])
        found.append(row)
    return found


def _difference(ours: dict[str, Any], others: list[Any]) -> float:
    """Largest difference, relative to the largest value."""
    pairs = zip(ours.values(), others, strict=False)
    return max(float(np.abs(a - b).max() / max(1e-9, np.abs(b).max())) for a, b in pairs)


def _range(text: str) -> tuple[str, tuple[int, int]]:
    name, _, ends = text.partition("=")
    low, _, high = ends.partition("..")
    return name, (int(low), int(high))


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", type=_range, action="append")
    parser.add_argument("--at", nargs="*", default=list(AT))
    parser.add_argument("--database")
    parser.add_argument("--seconds-each", type=float, default=1.0)
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.sizes = dict(options.shape) if options.shape else SIZES
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in [str(options.model)] if options.model else options.networks:
            path = options.model or Path(folder) / f"{name}.onnx"
            network = None if options.model else exported(name, path)
            figures[name] = measure(path, options, network)
            if not options.json:
                note(f"{name}: {', '.join(f'{n}={a}..{b}' for n, (a, b) in options.sizes.items())}")
                header = ("sizes", "ms", "of exact", "on the host", "differs", "from torch")
                rows = [
                    (
                        f["sizes"], f"{f['ms']:.3f}", f"{f['ratio']:.2f}", f["host"],
                        f"{f['of_exact']:.1e}", f"{f['of_torch']:.1e}" if "of_torch" in f else "",
                    )
                    for f in figures[name]
                ]  # fmt: skip
                print(table(header, rows))
    if options.json:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

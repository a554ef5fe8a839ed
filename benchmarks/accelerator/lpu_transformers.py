"""Transformers of public sizes on an LPU-like chip: cycles by kernel, values, time to compile.

    python -m benchmarks.accelerator.lpu_transformers bert-base [--layers 1] [--tokens 128]
        [--precision int8] [--chips N] [--check] [--kernels] [--set KEY=VALUE]

(As a module: run by its path, `benchmarks/` would hide packages that transformers uses.)

Names: bert-base and bert-large (embeddings, mask and all; with -encoder on hidden states), gpt2 (a
prompt) and gpt2-step (one token with a cache), whisper-tiny (its encoder), llama-1b-step (a token
through layers of Llama 3.2 1B with a cache). Weights are random, as `transformers` makes them by
the public configurations. Printed: latency, cycles, what MXM would take at its peak, where the
cycles went, steps on the host, seconds to compile and to schedule. --kernels: of each kernel the
cycles it shows (from the last result before it to its own) and those from its first instruction to
its last; --check: the largest difference from onnxruntime, and
onnxruntime's from itself on inputs larger or smaller by up to three millionths.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import onnx
    import torch
    from torch import Tensor, nn

    from benchmarks.accelerator.subjects.beside_onnxruntime import beside
    from tilesmith import quantize
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.driver.build import BuildOptions, build
    from tilesmith.compiler.onnx.importer import import_model
    from tilesmith.compiler.recipe.program import HostStep
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.families.lpu.backend.programs.model import shown_times, spans
    from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
    from tilesmith.search_space.hardware.target import load_target
    from tilesmith.search_space.support.errors import TilesmithError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


@dataclass(frozen=True)
class Case:
    """A module, its arguments by name, and how many layers it has."""

    module: nn.Module
    inputs: dict[str, Tensor]


class First(nn.Module):
    """A module of `transformers` by named tensors: the first thing it gives."""

    def __init__(self, module: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.module, self.fixed = module, fixed

    def forward(self, **inputs: Tensor) -> Tensor:
        found: Tensor = self.module(**inputs, **self.fixed)[0]
        return found


class Encoder(nn.Module):
    """BERT's layers on hidden states."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.encoder = module.encoder

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.encoder(hidden).last_hidden_state
        return found


class Step(nn.Module):
    """One token of a decoder, its cache given and taken as tensors."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, hidden: Tensor, position_ids: Tensor, **cache: Tensor) -> Tensor:
        from transformers import DynamicCache

        past = DynamicCache()
        for layer in range(self.layers):
            past.update(cache[f"key{layer}"], cache[f"value{layer}"], layer)
        found: Tensor = self.model(
            inputs_embeds=hidden, position_ids=position_ids, past_key_values=past
        )[0]
        return found


def bert(layers: int, tokens: int, size: dict[str, int], embedded: bool) -> Case:
    from transformers import BertConfig, BertModel

    configuration = BertConfig(num_hidden_layers=layers, attn_implementation="eager", **size)
    model = BertModel(configuration, add_pooling_layer=False)
    if embedded:
        hidden = torch.randn(1, tokens, configuration.hidden_size)
        return Case(Encoder(model), {"hidden": hidden})
    mask = torch.ones(1, tokens, dtype=torch.int64)
    mask[:, tokens - tokens // 8 :] = 0
    ids = torch.randint(0, configuration.vocab_size, (1, tokens))
    return Case(First(model), {"input_ids": ids, "attention_mask": mask})


BASE: dict[str, int] = {}
LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}


def gpt2(layers: int, tokens: int) -> Case:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_layer=layers, attn_implementation="eager"))
    hidden = torch.randn(1, tokens, 768)
    return Case(First(model, use_cache=False), {"inputs_embeds": hidden})


def gpt2_step(layers: int, tokens: int) -> Case:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(n_layer=layers, attn_implementation="eager"))
    return step(model, layers, tokens, (12, 64, 768))


def llama_step(layers: int, tokens: int) -> Case:
    from transformers import LlamaConfig, LlamaModel

    configuration = LlamaConfig(
        vocab_size=32, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, attn_implementation="eager",
    )  # fmt: skip
    return step(LlamaModel(configuration), layers, tokens, (8, 64, 2048))


def step(model: nn.Module, layers: int, tokens: int, size: tuple[int, int, int]) -> Case:
    """One token behind `tokens` in the cache; `size`: heads of keys, their width, hidden width."""
    heads, width, hidden = size
    cache = {
        f"{name}{layer}": torch.randn(1, heads, tokens, width)
        for layer in range(layers)
        for name in ("key", "value")
    }
    inputs = {"hidden": torch.randn(1, 1, hidden), "position_ids": torch.tensor([[tokens]])}
    return Case(Step(model, layers), {**inputs, **cache})


def whisper(layers: int, tokens: int) -> Case:
    from transformers import WhisperConfig, WhisperModel

    configuration = WhisperConfig(
        d_model=384, encoder_layers=layers, encoder_attention_heads=6, encoder_ffn_dim=1536,
        decoder_layers=1, decoder_attention_heads=6, decoder_ffn_dim=1536,
        max_source_positions=tokens, attn_implementation="eager",
    )  # fmt: skip
    features = torch.randn(1, configuration.num_mel_bins, 2 * tokens)
    return Case(First(WhisperModel(configuration).encoder), {"input_features": features})


MODELS: dict[str, tuple[int, int, Callable[[int, int], Case]]] = {
    "bert-base": (12, 128, lambda layers, tokens: bert(layers, tokens, BASE, False)),
    "bert-base-encoder": (12, 128, lambda layers, tokens: bert(layers, tokens, BASE, True)),
    "bert-large": (24, 128, lambda layers, tokens: bert(layers, tokens, LARGE, False)),
    "bert-large-encoder": (24, 128, lambda layers, tokens: bert(layers, tokens, LARGE, True)),
    "gpt2": (12, 128, gpt2),
    "gpt2-step": (12, 127, gpt2_step),
    "whisper-tiny": (4, 1500, whisper),
    "llama-1b-step": (1, 127, llama_step),
}
"""Layers, tokens (of a step: those in the cache), and what builds it."""


def exported(case: Case, path: Path) -> None:
    """The ONNX file of a case."""
    module = case.module.eval().requires_grad_(False)
    torch.onnx.export(
        module, (), str(path), kwargs=case.inputs, input_names=[*case.inputs], dynamo=True,
        external_data=False, verbose=False,
    )  # fmt: skip


def kernels(program: ChipProgram) -> None:
    """Cycles of every kernel that has chains of its own."""
    mhz = program.schedule.chip.ghz * 1e3
    print("  shown   first ..    last  kernel")
    found = {span.details["kernel"]: span for span in spans(program)}
    for step, us in zip(program.steps, shown_times(program), strict=True):
        if step.name not in found:
            print(f"{'joined':>7}  {'':18}{step.workload}")
            continue
        span = found[step.name]
        first, last = span.start * mhz, span.end * mhz
        print(f"{round(us * mhz):7d} {first:7.0f} .. {last:7.0f}  {step.workload}")


def difference(model: onnx.ModelProto, executable: Executable, inputs: dict[str, Tensor]) -> str:
    """How far values are from onnxruntime's."""
    found = beside(executable, model, {name: tensor.numpy() for name, tensor in inputs.items()})
    ours, shaken = found.ours, found.shaken
    return (
        f"differs from onnxruntime by {ours.worst:.1e} at most, of values up to {ours.largest:.1f} "
        f"(norm {ours.norm:.1e}); onnxruntime from itself, shaken, by {shaken.worst:.1e} (norm "
        f"{shaken.norm:.1e})"
    )


def report(arguments: argparse.Namespace, path: Path, inputs: dict[str, Tensor]) -> None:
    """Compile, schedule and print."""
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    target = load_target("lpu1").with_settings(settings)
    model = onnx.load(str(path))
    if arguments.precision == "int8":
        model = quantize(path, random=1, fuse_residuals=True).model
    began = time.perf_counter()
    executable = build(import_model(model), target, options=BuildOptions(chips=arguments.chips))
    recipe, built = executable.recipe, time.perf_counter()
    found = backend_of(target).simulate(recipe)
    took = time.perf_counter()
    print(f"{found.latency_us:.1f} us, {found.cycles:,} cycles")
    if arguments.chips > 1:
        print("\n".join(found.remarks))
        return
    peak = found.details["model_roofline_us"]
    print(f"products at MXM's peak: {peak:.1f} us, {peak / found.latency_us:.1%}")
    parts = segments(recipe, target)
    for part in parts:
        if isinstance(part, ChipProgram) and arguments.kernels:
            kernels(part)
    for name, share in found.engines.items():
        print(f"{name} is busy for {share:.1%}")
    print("\n".join(found.remarks[1:]))
    hosts = Counter(step.name.split()[0] for step in recipe.steps if isinstance(step, HostStep))
    host = ", ".join(f"{count} {operator}" for operator, count in hosts.items()) or "nothing"
    chains = sum(len(part.joined.flow.chains) for part in parts if isinstance(part, ChipProgram))
    print(f"on the host: {host}; {chains} chains; compiled in {built - began:.0f} s, "
          f"scheduled and checked in {took - built:.0f} s")  # fmt: skip
    if arguments.check:
        print(difference(model, executable, inputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--precision", choices=("fp16", "int8"), default="fp16")
    parser.add_argument("--chips", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="where to write the ONNX file")
    arguments = parser.parse_args()
    layers, tokens, make = MODELS[arguments.name]
    torch.manual_seed(0)
    case = make(arguments.layers or layers, arguments.tokens or tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.keep or Path(folder) / "model.onnx"
        exported(case, path)
        try:
            report(arguments, path, case.inputs)
        except TilesmithError as error:
            print(f"{arguments.name}: {error}")


if __name__ == "__main__":
    main()

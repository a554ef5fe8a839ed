"""Generates text with a language model compiled from PyTorch.

    pip install 'tilesmith[torch]' transformers
    python examples/generate.py [--tokens 64] [--prompt 32] [--layers 8] [--hidden 512] [--json]

The model is a Llama of `transformers` with random weights (nothing is downloaded); its cache is
static, with room for every position from the start, and both steps write it where it is. Greedy
tokens have to be those that `transformers` generates; tokens a second are printed beside its own,
on one thread each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

try:
    import torch
    from torch import Tensor, nn
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.cache_utils import StaticCache

    import tilesmith as ts
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

Caches = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, Caches], Tensor]


class CachedStep(nn.Module):
    """One step of a language model: new tokens in, the logits after the last of them out."""

    def __init__(self, model: Any, room: int) -> None:
        super().__init__()
        self.model, self.room = model, room

    def forward(self, tokens: Tensor, start: Tensor, caches: Caches) -> Tensor:
        """(1, n) tokens at positions `start` and after -> (1, vocabulary) logits.

        `caches` holds each layer's keys, then its values, (1, heads, room, width), to be written.
        """
        cache = StaticCache(config=self.model.config, max_cache_len=self.room)
        for layer, keys, values in zip(cache.layers, caches[::2], caches[1::2], strict=True):
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            layer.dtype, layer.device = keys.dtype, keys.device
            layer.cumulative_length = start.clone()
        positions = torch.arange(tokens.shape[1])[None] + start
        found = self.model(
            input_ids=tokens, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        logits: Tensor = found.logits[:, -1]
        return logits


def empty_caches(configuration: LlamaConfig, room: int) -> Caches:
    """Keys and values of every layer, nothing in them yet."""
    width = configuration.hidden_size // configuration.num_attention_heads
    shape = (1, configuration.num_key_value_heads, room, width)
    return tuple(torch.zeros(shape) for _ in range(2 * configuration.num_hidden_layers))


def generate(
    prefill: Step, decode: Step, prompt: Tensor, caches: Caches, count: int
) -> tuple[list[int], float, float]:
    """Greedy tokens, seconds for the prompt, and seconds for all tokens after the first."""
    started = time.perf_counter()
    logits = prefill(prompt, torch.tensor(0), caches)
    tokens = [int(logits.argmax())]
    first = time.perf_counter()
    for position in range(prompt.shape[1], prompt.shape[1] + count - 1):
        logits = decode(torch.tensor([tokens[-1:]]), torch.tensor(position), caches)
        tokens.append(int(logits.argmax()))
    return tokens, first - started, time.perf_counter() - first


def theirs(model: Any, prompt: Tensor, count: int) -> tuple[list[int], float, float]:
    """The same by `transformers`: tokens, seconds for one token, seconds for all after it."""
    options = {"do_sample": False, "cache_implementation": "static", "pad_token_id": 0}
    started = time.perf_counter()
    model.generate(prompt, max_new_tokens=1, min_new_tokens=1, **options)
    first = time.perf_counter()
    found = model.generate(prompt, max_new_tokens=count, min_new_tokens=count, **options)
    whole = time.perf_counter() - first
    return found[0, prompt.shape[1] :].tolist(), first - started, whole - (first - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    heads, rest = divmod(arguments.hidden, 64)
    keys = heads // 4 if heads % 4 == 0 else heads
    if rest or min(heads, arguments.layers, arguments.tokens - 1, arguments.prompt) < 1:
        parser.error(
            "--hidden is a multiple of 64, --layers and --prompt 1 or more, --tokens 2 or more"
        )
    if arguments.prompt + arguments.tokens > 1024:
        parser.error("--prompt and --tokens are more than the 1024 positions of the model")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    configuration = LlamaConfig(
        vocab_size=arguments.vocabulary, hidden_size=arguments.hidden,
        intermediate_size=arguments.hidden * 11 // 4, num_hidden_layers=arguments.layers,
        num_attention_heads=heads, num_key_value_heads=keys,
        max_position_embeddings=1024,
    )  # fmt: skip
    model = LlamaForCausalLM(configuration).eval().requires_grad_(False)
    prompt = torch.randint(3, arguments.vocabulary, (1, arguments.prompt))
    room = arguments.prompt + arguments.tokens
    step, caches = CachedStep(model, room), empty_caches(configuration, room)
    started = time.perf_counter()
    prefill = ts.from_torch(step, (prompt, torch.tensor(0), caches))
    decode = ts.from_torch(step, (prompt[:, :1], torch.tensor(0), caches))
    compiling = time.perf_counter() - started
    generate(prefill, decode, prompt, empty_caches(configuration, room), 2)  # both are warm
    ours, prompt_s, tokens_s = generate(
        prefill, decode, prompt, empty_caches(configuration, room), arguments.tokens
    )
    theirs(model, prompt, 2)
    wanted, their_prompt_s, their_tokens_s = theirs(model, prompt, arguments.tokens)
    found = {
        "tokens": ours,
        "equal": ours == wanted,
        "compile_s": compiling,
        "prompt_ms": prompt_s * 1e3,
        "their_prompt_ms": their_prompt_s * 1e3,
        "tokens_per_s": (arguments.tokens - 1) / tokens_s,
        "their_tokens_per_s": (arguments.tokens - 1) / their_tokens_s,
        "host": [*prefill.executable.report.host_nodes, *decode.executable.report.host_nodes],
    }
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{len(ours)} tokens, {'equal to' if found['equal'] else 'NOT those of'} transformers'")
    print(f"prompt of {arguments.prompt}: {prompt_s * 1e3:.1f} ms; transformers "
          f"{their_prompt_s * 1e3:.1f} ms")  # fmt: skip
    print(f"{found['tokens_per_s']:.1f} tokens/s; transformers {found['their_tokens_per_s']:.1f}")


if __name__ == "__main__":
    main()

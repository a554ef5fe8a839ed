"""Dense decoders that differ from Llama in details: Gemma, OLMo, Cohere, GLM, Granite and others.

Source: modeling_*.py and configuration_*.py of transformers.
"""

from typing import Literal

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.architectures.llama import decoder
from tilesmith.capabilities.planning.architectures.parts import Habits, gated, plain
from tilesmith.capabilities.planning.architectures.windows import every, qwen_windows, windows
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families


@families.register("gemma")
def gemma(c: Configuration) -> Architecture:
    """Gemma: tied embeddings, wide heads."""
    return decoder(c, Habits(key_heads=16, width=256, tied=True))


@families.register("gemma2")
def gemma2(c: Configuration) -> Architecture:
    """Gemma 2: norms before and behind, every second layer, from the first on, sees a window."""
    seen = windows(c, 4096, lambda layer: layer % 2 == 0)
    return decoder(c, Habits(key_heads=4, width=256, tied=True, norms=4), seen)


@families.register("gemma3_text")
def gemma3(c: Configuration) -> Architecture:
    """Gemma 3: as Gemma 2 with normalised queries and keys; every sixth layer sees all. Published
    files leave out what the class has."""
    silent = {"vocab_size": 262208, "num_attention_heads": 8}
    c = Configuration(c.source, c.family, {**silent, **c.fields})
    habits = Habits(key_heads=4, width=256, tied=True, norms=4, normalised="heads")
    return decoder(c, habits, windows(c, 4096, every(c, 6)))


@families.register("olmo")
def olmo(c: Configuration) -> Architecture:
    """OLMo: normalisations without parameters."""
    return decoder(c, Habits(norm="none"))


@families.register("olmo2")
def olmo2(c: Configuration) -> Architecture:
    """OLMo 2: normalised queries and keys, all features together."""
    return decoder(c, Habits(normalised="all"))


@families.register("olmo3")
def olmo3(c: Configuration) -> Architecture:
    """OLMo 3: OLMo 2 with a window but for every fourth layer."""
    return decoder(c, Habits(normalised="all"), windows(c, 4096, every(c, 4)))


@families.register("granite")
def granite(c: Configuration) -> Architecture:
    """Granite: Llama with other factors."""
    return decoder(c, Habits())


@families.register("cohere")
def cohere(c: Configuration) -> Architecture:
    """Command R: attention and feed-forward side by side behind one norm."""
    normalised: Literal["all", ""] = "all" if c.flag("use_qk_norm", False) else ""
    return decoder(c, Habits(norms=1, tied=True, normalised=normalised))


@families.register("cohere2")
def cohere2(c: Configuration) -> Architecture:
    """Command R7B and A: windows but for every fourth layer."""
    return decoder(c, Habits(norms=1, tied=True), windows(c, 4096, every(c, 4)))


@families.register("smollm3")
def smollm3(c: Configuration) -> Architecture:
    """SmolLM 3."""
    return decoder(c, Habits(key_heads=4, tied=True), qwen_windows(c))


@families.register("glm")
def glm(c: Configuration) -> Architecture:
    """GLM 4, 9B: biases of query, key and value."""
    return decoder(c, Habits(key_heads=2, width=128, bias=True, output_bias=False))


@families.register("glm4")
def glm4(c: Configuration) -> Architecture:
    """GLM 4 of 2025: norms behind, too."""
    return decoder(c, Habits(key_heads=2, width=128, bias=True, output_bias=False, norms=4))


@families.register("exaone4")
def exaone4(c: Configuration) -> Architecture:
    """EXAONE 4: normalised queries and keys; windows but for every fourth layer."""
    slides = every(c, 4) if c.fields.get("sliding_window_pattern", 4) else (lambda layer: False)
    return decoder(c, Habits(normalised="heads"), windows(c, 4096, slides))


@families.register("seed_oss")
def seed_oss(c: Configuration) -> Architecture:
    """Seed-OSS: biases of query, key and value."""
    bias = c.flag("attention_out_bias", False)
    return decoder(c, Habits(key_heads=8, width=128, bias=True, output_bias=bias))


@families.register("ernie4_5")
def ernie(c: Configuration) -> Architecture:
    """ERNIE 4.5, dense."""
    bias = c.flag("use_bias", False)
    feed = gated(c.integer("hidden_size"), c.integer("intermediate_size"), bias=bias)
    habits = Habits(key_heads=2, width=128, bias=bias, output_bias=bias, tied=True)
    return decoder(c, habits, None, feed)


@families.register("stablelm")
def stablelm(c: Configuration) -> Architecture:
    """StableLM 2 and 3B: layer normalisation."""
    norms = 1 if c.flag("use_parallel_residual", False) else 2
    bias = c.flag("use_qkv_bias", False)
    return decoder(c, Habits(bias=bias, output_bias=False, norm="layer", norms=norms))


@families.register("starcoder2")
def starcoder2(c: Configuration) -> Architecture:
    """StarCoder 2: layer normalisation, a plain feed-forward, biases everywhere."""
    bias = c.flag("use_bias", True)
    feed = plain(c.integer("hidden_size"), c.integer("intermediate_size"), bias=bias)
    habits = Habits(key_heads=2, bias=bias, output_bias=bias, norm="layer", tied=True)
    return decoder(c, habits, windows(c), feed)


@families.register("nemotron")
def nemotron(c: Configuration) -> Architecture:
    """Nemotron 3 and 4: layer normalisation, a plain feed-forward of squares."""
    bias = c.flag("mlp_bias", False)
    feed = plain(c.integer("hidden_size"), c.integer("intermediate_size"), bias=bias)
    return decoder(c, Habits(norm="layer"), None, feed)

"""What engines do with the attention of prompts: which graphs keep its scores on chip.

transformers-neuronx, the engine of the published times on trn1 and inf2, writes attention into its
graph as it stands in a book (layers/attention.py of April 2024: `score`, `mask`, `context_combined`
with one softmax) and leaves it to the compiler to tile it. What the compiler makes of it depends on

- the layout of activations: batch, sequence, hidden (`attention_layout="BSH"`) "can enable better
  overlapping of compute with collectives and can reduce transposes" (developer guide, Attention
  Layout). AWS's samples set it for Llama 3 and later alone; the default is the other one.
- the length: "the Flash Attention kernel is automatically used when the input sequence length is
  greater than 8k" (developer guide, Long Sequence length support), of Llama's graph ("compiler
  optimized flash attention kernel to support context lengths of 16k/32k for Llama models", release
  notes). Programs are of powers of two, so it is the one of 8,192 rows that has it.
- whether a prompt is alone, on some machines (`serving.fused_alone` of a mesh).

NxD Inference has one kernel for the attention of all prompts (`serving.fused` of a mesh).
"""

from tilesmith.capabilities.planning.architecture import Architecture

LONGEST_WITHOUT = 4096
"""Rows of the longest program that has no kernel; the next has 8,192."""
_BSH_WORDS = 128_256
"""The vocabulary of Llama 3 and its successors: which generation it is of, a configuration does not
say otherwise."""
_ALONE = ("llama", "qwen2", "mistral")
"""Families whose graphs have a kernel for one sequence at a time (llama/hlo.py, qwen2/hlo.py:
`batch_size == 1`; of Mistral by published times)."""


def stays_on_chip(architecture: Architecture, alone: bool) -> bool:
    """Whether scores of a prompt of any length do.

    Args:
        alone: one sequence, on a mesh whose engine has a kernel for it.
    """
    if alone and architecture.family in _ALONE:
        return True
    return architecture.family == "llama" and architecture.vocabulary >= _BSH_WORDS


def has_long_kernel(architecture: Architecture, keys: int) -> bool:
    """Whether the program for so many keys has the compiler's kernel for long prompts."""
    return architecture.family == "llama" and keys > LONGEST_WITHOUT

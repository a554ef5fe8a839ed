"""Operators as PyTorch means them, where the functions of its exporter write something else.

Attention with a mask: the exporter puts the least finite number for keys that a mask of truth
values leaves out, so that a query which sees none weighs all alike, and makes 0 of whatever is no
number. PyTorch's own (`_safe_softmax`): a query of which all scores are minus infinity has a result
of 0, and what is no number in queries or keys stays, with masks of either kind. The other forms are
the exporter's.

Batch norms in inference: PyTorch keeps no numbers of the batch, the exporter gives running ones.

Views of all of a tensor, which PyTorch's decompositions leave: the exporter has no function.
"""

import math
from collections.abc import Callable
from typing import Any

import onnx_ir
import torch
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core, nn


def _identity(a: Any) -> Any:
    return op.Identity(a)


def _batch_norm(
    input: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    momentum: float = 0.9,
    eps: float = 1e-05,
) -> Any:
    whole = core.aten__native_batch_norm_no_training(
        input, weight, bias, running_mean, running_var, momentum, eps
    )
    nothing = op.Constant(value=onnx_ir.tensor([], dtype=input.dtype))
    return whole[0], nothing, nothing


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if attn_mask is None or dropout_p:
        return nn.aten_scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )

    def number(of: float) -> Any:
        return op.Constant(value=onnx_ir.tensor(of, dtype=query.dtype))

    rank = len(query.shape)
    if enable_gqa and query.shape[1] != key.shape[1]:
        key, value = nn._attention_repeat_kv_for_group_query(query, key, value)
    mask, zero = attn_mask, number(0.0)
    if mask.dtype == onnx_ir.DataType.BOOL:
        mask = op.Where(mask, zero, number(-math.inf))
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    factor = number(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = op.Add(op.MatMul(op.Mul(query, factor), turned), mask)
    blind = op.Less(scores, number(float(query.dtype.min)))
    weights = op.Where(blind, zero, op.Softmax(scores, axis=-1))
    return op.MatMul(weights, value)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _batch_norm,
    torch.ops.prims.view_of.default: _identity,
}
"""What `torch.onnx.export` takes as `custom_translation_table`."""

INEXACT = ("aten::special_erfcx",)
"""Operators, as the exporter names them, whose functions overflow: it writes erfcx as
exp(x^2) erfc(x). PyTorch runs them."""

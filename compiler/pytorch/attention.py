"""Attention with a mask as PyTorch means it, where its exporter writes another.

The exporter puts the least finite number for keys that a mask of truth values leaves out, so that a
query which sees none weighs all alike, and makes 0 of whatever is no number. PyTorch's own
(`_safe_softmax`): a query of which all scores are minus infinity has a result of 0, and what is no
number in queries or keys stays, with masks of either kind. The other forms are the exporter's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What `torch.onnx.export` takes as `custom_translation_table`; needs onnxscript."""
    import onnx_ir
    from onnxscript import opset18 as op
    from onnxscript.function_libs.torch_lib.ops import nn

    def attention(
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

    return {torch.ops.aten.scaled_dot_product_attention.default: attention}

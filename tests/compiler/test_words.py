"""Attributes that are one of a few words: another is refused in a sentence, for every operator."""

from __future__ import annotations

import onnx
import pytest
from onnx.defs import OpSchema

from tests.compiler.model_builder import model_of
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.onnx.inference.words import word_faults
from tilesmith.search_space.support.errors import ModelError

_FREE = {
    ("Cast", "to"), ("Constant", "value_string"), ("Constant", "value_strings"),
    ("Einsum", "equation"), ("RegexFullMatch", "pattern"), ("StringNormalizer", "locale"),
    ("StringNormalizer", "stopwords"), ("StringSplit", "delimiter"),
    ("TfIdfVectorizer", "pool_strings"),
}  # fmt: skip
"""Attributes that may be any text, or that something else reads."""

_TEXTS = (OpSchema.AttrType.STRING, OpSchema.AttrType.STRINGS)


def test_every_word_of_the_standard_is_checked() -> None:
    checked = 0
    for schema in onnx.defs.get_all_schemas():
        for name, formal in schema.attributes.items():
            if schema.domain or formal.type not in _TEXTS or (schema.name, name) in _FREE:
                continue
            assert list(word_faults(schema.name, name, ["bogus"])), (schema.name, name)
            value = onnx.helper.get_attribute_value(formal.default_value)
            words = value if isinstance(value, list) else [value] if value else []
            assert not list(word_faults(schema.name, name, [word.decode() for word in words]))
            checked += 1
    assert checked > 35


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('SoftmaxCrossEntropyLoss<reduction="bogus">(x, t)', "none, mean, sum"),
        ('SoftmaxCrossEntropyLoss<reduction="bogus">(x, t, w)', "none, mean, sum"),
        ('NegativeLogLikelihoodLoss<reduction="max">(x, t)', "none, mean, sum"),
        ('ScatterElements<reduction="mean">(x, t2, x)', "none, add, mul, max, min"),
        ('Pad<mode="circular">(x, p)', "constant, reflect, edge, wrap"),
        ('Gelu<approximate="erf">(x)', "none, tanh"),
    ],
)
def test_an_unknown_word_is_a_sentence(call: str, said: str) -> None:
    model = model_of(
        f"g (float[3, 5] x, int64[3] t, int64[3, 5] t2) => (float y) {{ y = {call} }}", opset=20,
        w=[1.0] * 5, p=[0, 1, 0, 1],
    )  # fmt: skip
    with pytest.raises(ModelError, match=rf"attribute '\w+' is '\w+'; it has to be one of {said}"):
        import_model(model)


def test_activations_are_known_in_either_case() -> None:
    assert not list(word_faults("LSTM", "activations", ["sigmoid", "TANH", "tanh"]))
    (wrong,) = word_faults("LSTM", "activations", ["Sigmoid", "Swish", "Tanh"])
    assert wrong.startswith("is 'Swish'; it has to be one of Relu, Tanh")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('Pad<mode="circular">(x, p)', "constant, reflect, edge, wrap"),
        ('FusedConv<auto_pad="FULL">(x, w)', "NOTSET, SAME_UPPER"),
        ('NhwcMaxPool<kernel_shape=[1, 1], auto_pad="FULL">(b)', "NOTSET, SAME_UPPER"),
    ],
)
def test_so_is_one_of_an_operator_that_optimisers_add(call: str, said: str) -> None:
    model = model_of(
        "g (float[1, 1, 3, 3] x, uint8[1, 3, 3, 1] b) => (float[A, B, C, D] y) "
        f"{{ y = com.microsoft.{call} }}",
        w=[[[[1.0]]]], p=[0] * 8,
    )  # fmt: skip
    with pytest.raises(ModelError, match=rf"attribute '\w+' is '\w+'; it has to be one of {said}"):
        import_model(model)

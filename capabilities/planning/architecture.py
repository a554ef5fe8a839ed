"""What a model computes, as a planner sees it: layers of operators with sizes, weights without
values.

An `Architecture` is read from a public configuration (`architectures/`) or from an ONNX graph. A
layer's operators work on *rows*: as many as the step has new tokens (text), or a fixed number for
each sequence (`Layer.rows`: patches, pixels, a prompt of fixed length). Sizes are of the whole
model; what one core holds of them is `shares.py`'s business.

Invariants: frozen; `parameters` counts every number of a published checkpoint once, biases and
normalisations included, repeated layers as often as they stand in the model, tied embeddings once.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

Split = Literal["columns", "heads", "rows", "none"]
"""How the cores of a tensor group share a product's weights: outputs each of its own (`columns`; of
keys and values, whose heads are copied where there are fewer than cores, `heads`), inputs each of
its own and a sum over the cores behind it (`rows`), or all of it on every core (`none`)."""

Kind = Literal["decoder", "pass"]
"""`decoder`: prompt and tokens, with a cache; `pass`: one forward pass (encoders, vision,
diffusion)."""


@dataclass(frozen=True)
class ProductOperator:
    """rows x k times k x n with weights of its own.

    Attributes:
        unit: the features that stay together when cores share it (a head's width).
        times: how often it stands in the layer (gate and up of a gated feed-forward: 2).
        tied: its weights are another operator's (an embedding's).
        rows: of each sequence, where they are not the layer's.
        heads: of keys and values, heads of queries: what theirs may be copied to.
    """

    name: str
    k: int
    n: int
    split: Split = "columns"
    unit: int = 1
    times: int = 1
    bias: bool = False
    tied: bool = False
    rows: int = 0
    heads: int = 0

    @property
    def weights(self) -> int:
        """The number of weights that the product multiplies by."""
        return self.times * (self.k * self.n + (self.n if self.bias else 0))

    @property
    def parameters(self) -> int:
        return 0 if self.tied else self.weights


@dataclass(frozen=True)
class AttentionOperator:
    """Softmax attention between heads; its projections are products beside it.

    Attributes:
        heads, key_heads: of queries, and of keys and values (grouped queries).
        width, value_width: features of one query or key, and of one value.
        window: keys a query sees at most (0: all).
        causal: a query sees no later keys.
        keys: fixed number of keys (cross attention); 0: the rows themselves, or the cache.
        latent: numbers cached for each token and layer in place of keys and values, shared by all
            heads (multi-head latent attention); 0: keys and values.
    """

    name: str
    heads: int
    key_heads: int
    width: int
    value_width: int
    window: int = 0
    causal: bool = True
    keys: int = 0
    latent: int = 0
    parameters: ClassVar[int] = 0

    @property
    def cached(self) -> int:
        """The number of values that one layer caches for each token, over all heads."""
        return self.latent or self.key_heads * (self.width + self.value_width)


@dataclass(frozen=True)
class Experts:
    """A routed feed-forward: `count` experts, of which each row visits `active`."""

    name: str
    count: int
    active: int
    products: tuple[ProductOperator, ...]

    @property
    def parameters(self) -> int:
        return self.count * sum(p.parameters for p in self.products)


@dataclass(frozen=True)
class PointwiseOperator:
    """Work on every number of a row: normalisations, activations, residuals, rotations.

    Attributes:
        operands: rows that are read for each one that is written.
        split: whether the cores of a tensor group share the numbers of a row.
    """

    name: str
    width: int
    parameters: int = 0
    operands: int = 1
    split: bool = False


@dataclass(frozen=True)
class Lookup:
    """Rows of a table picked by index: embeddings."""

    name: str
    entries: int
    width: int

    @property
    def parameters(self) -> int:
        return self.entries * self.width


Operator = ProductOperator | AttentionOperator | Experts | PointwiseOperator | Lookup


@dataclass(frozen=True)
class Layer:
    """Operators one behind the other, `repeats` times in the model.

    Attributes:
        rows: rows of each sequence it works on; 0: as many as the step has new tokens.
        last: only the last token's row of each sequence passes (the head of a decoder).
        runs: how often a pass runs each of them (denoising steps).
        once: they run with the prompt alone, and keep nothing of their own (encoders, and the keys
            of attention across to them).
    """

    name: str
    operators: tuple[Operator, ...]
    repeats: int = 1
    rows: int = 0
    last: bool = False
    runs: int = 1
    once: bool = False

    @property
    def parameters(self) -> int:
        return self.repeats * sum(operator.parameters for operator in self.operators)


@dataclass(frozen=True)
class Architecture:
    """A model: its layers in order, and what a planner asks of the whole.

    Attributes:
        family: what its configuration calls it (`model_type` or `_class_name`).
        width: features of the residual stream; what collectives carry for each row.
        vocabulary: entries of the output distribution (0: none).
        positions: the longest sequence it was made for (0: any).
        stored: what its checkpoint keeps weights as (`quantisation.py`); "": as they were trained.
    """

    name: str
    family: str
    kind: Kind
    layers: tuple[Layer, ...]
    width: int
    vocabulary: int = 0
    positions: int = 0
    stored: str = ""

    @property
    def parameters(self) -> int:
        """The number of weights in the checkpoint."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def active_parameters(self) -> int:
        """The number of weights that one token is multiplied by."""
        idle = sum(
            layer.repeats * (op.count - op.active) * sum(p.parameters for p in op.products)
            for layer in self.layers
            for op in layer.operators
            if isinstance(op, Experts)
        )
        return self.parameters - idle

    @property
    def depth(self) -> int:
        """The number of layers with attention, which is how a model's depth is counted."""
        return sum(
            layer.repeats
            for layer in self.layers
            if any(isinstance(op, AttentionOperator) for op in layer.operators)
        )

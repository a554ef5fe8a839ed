"""What is known of ONNX's operators by name: one table, which all who treat operators alike ask.

    having("moves", "picks")       operators with one of these traits
    numbers("sizes")["Slice"]      (1, 2, 3, 4), the numbers of a trait that has some

    pointwise     each element of the result by itself, operands broadcast
    affine        linear in one operand while the others stay as they are
    curved        a function that a chain of elementwise nodes has in an estimate of serving
    double        its formula has no more than functions that kernels have in float64, and no
                  numbers of single precision
    step          jumps where its operand is a whole number, or operands are equal
    smooth        passes a small change of its operand on as a small one
    moves         gives numbers of its first operand, wherever these are put
    reorders      moves each of them once
    reshapes      leaves them in their order
    joins         gives the numbers of all operands
    picks         gives the greatest or least of some numbers: of bytes it is the same one
    bounds        gives a number of one of its operands, or 0
    samples       gives numbers of its first operand where `mode` is `nearest`
    reduces       over axes that `axes` names
    folds         by a kernel of its own
    pools         over windows of images, or whole ones
    homogeneous   a positive factor of a channel passes through
    products      by weights
    quantised     reads or writes numbers as whole numbers with a scale
    random        draws random numbers: it must not be computed beforehand
    sizes:...     operands that say what shape a result has, which has to be known to compile it;
                  whatever is missing here is computed right all the same, on the host
    inferred:...  the opset whose shape inference is taken for models of earlier ones, too: before
                  it ONNX counts pooling windows that start behind the input (with `ceil_mode`),
                  passes over negative axes, infers nothing, or does not know the axis that ONNX
                  Runtime's quantiser writes

Invariant: an operator stands in one row. Operators of other domains stand beside ONNX's own where
files name them without a domain.
"""

from collections.abc import Mapping
from functools import cache

_ROWS = """
Acos Acosh And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cosh Mean \
    Not Or Shrink Sinh Tan ThresholdedRelu Xor: pointwise
Div: pointwise affine double
Add Mul Sub: pointwise affine double smooth
Celu Cos Elu Erf Exp Gelu HardSigmoid HardSwish Log Mish PRelu Pow Selu Sigmoid Sin Softplus \
    Softsign Swish Tanh: pointwise curved
Reciprocal Sqrt Where: pointwise curved double
Abs Clip Neg: pointwise curved double smooth
Max Min: pointwise curved double smooth bounds
Relu: pointwise curved double smooth bounds homogeneous
LeakyRelu: pointwise curved homogeneous
Cast CastLike IsInf IsNaN Sign Sum: pointwise double
Ceil Equal Floor Greater Less Round: pointwise double step
GreaterOrEqual LessOrEqual: pointwise double step inferred:16
Mod: pointwise step
Identity: pointwise smooth moves reorders
Transpose: smooth moves reorders
Flatten: moves reorders reshapes
Reshape: smooth moves reorders reshapes sizes:1
Squeeze Unsqueeze: smooth moves reorders reshapes sizes:1 inferred:11
DepthToSpace Gather GatherElements GatherND SpaceToDepth: moves
Expand Split Tile: moves sizes:1
Slice: moves sizes:1,2,3,4
Concat: joins
Upsample: samples sizes:1
Resize: samples sizes:1,2,3
MaxPool: picks pools homogeneous inferred:22
GlobalMaxPool: picks pools
AveragePool: pools homogeneous inferred:22
GlobalAveragePool: pools homogeneous
LpPool: pools inferred:22
GlobalLpPool: pools
ReduceMax ReduceMin: picks reduces folds sizes:1
ReduceMean ReduceProd ReduceSum: reduces folds sizes:1
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare: reduces sizes:1
Conv Gemm MatMul: products
BatchNormalization: affine
BiasGelu FastGelu QuickGelu: curved
ConvInteger DynamicQuantizeLinear DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat \
    MatMulNBits QGemm QLinearConv QLinearMatMul: quantised
DequantizeLinear QuantizeLinear: quantised inferred:13
Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike: random
ConstantOfShape: sizes:0
AffineGrid CenterCropPad CumSum OneHot TopK Trilu: sizes:1
Col2Im: sizes:1,2
Pad: sizes:1,3
MaxUnpool: sizes:2
"""

_TRAITS: Mapping[str, tuple[str, ...]] = {
    operator: tuple(traits.split())
    for operators, _, traits in (row.partition(": ") for row in _ROWS.strip().split("\n"))
    for operator in operators.split()
}


@cache
def having(*traits: str) -> tuple[str, ...]:
    """Operators that have one of some traits, in the order of the table."""
    return tuple(name for name, own in _TRAITS.items() if not set(traits).isdisjoint(own))


@cache
def numbers(trait: str) -> Mapping[str, tuple[int, ...]]:
    """Return the numbers of a trait by operator, for operators that have it."""
    words = {name: [word.partition(":") for word in own] for name, own in _TRAITS.items()}
    return {
        name: tuple(map(int, values.split(",")))
        for name, parts in words.items()
        for word, _, values in parts
        if word == trait
    }

"""TVM's half of `benchmarks.search.metaschedule`: operators in its expression language, searched.

    python -m benchmarks.search.tvm_search OPERATOR FORM FOLDER SECONDS

It runs in a process of its own and imports nothing of Tilesmith's, so that TVM's worker processes
start quickly. What TVM imports once (15 s of processor time for the tensor intrinsics of other
targets) is not counted: the clock starts behind it, and workers build without it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Tensors = list[Any]
"""Tensors of TVM's expression language: a kernel's operands, its result last."""
Form = Callable[[], Tensors]
"""One way to state an operator."""


def _matmul(m: int, n: int, k: int, batch: int = 0) -> Form:
    """A product, batched if `batch`; without a batch the right operand is constant."""

    def form() -> Tensors:
        from tvm import te

        outer = (batch,) if batch else ()
        a = te.placeholder((*outer, m, k), name="a")
        b = te.placeholder((*outer, k, n), name="b")
        axis = te.reduce_axis((0, k), name="k")

        def element(*index: Any) -> Any:
            *rest, i, j = index
            return te.sum(a[(*rest, i, axis)] * b[(*rest, axis, j)], axis=axis)

        free = {} if batch else {"attrs": {"layout_free_placeholders": [b]}}
        return [a, b, te.compute((*outer, m, n), element, name="c", **free)]

    return form


def _conv2d(c: int, side: int, oc: int, kernel: int, stride: int) -> Form:
    """A convolution in NHWC with constant weights, padded to the same size."""

    def form() -> Tensors:
        from tvm import te, topi

        data = te.placeholder((1, side, side, c), name="data")
        weight = te.placeholder((kernel, kernel, c, oc), name="weight")
        return [data, weight, topi.nn.conv2d_nhwc(data, weight, stride, kernel // 2, 1)]

    return form


def _winograd(c: int, side: int, oc: int) -> Form:
    """A 3x3 convolution in NHWC by tiles of 4x4, its weights transformed beforehand to 6x6."""

    def form() -> Tensors:
        from tvm import te, topi

        data = te.placeholder((1, side, side, c), name="data")
        weight = te.placeholder((6, 6, oc, c), name="weight")
        computed = topi.nn.conv2d_winograd_nhwc_without_weight_transform
        return [data, weight, computed(data, weight, 1, 1, 1, "float32")]

    return form


def _depthwise(c: int, side: int, kernel: int) -> Form:
    def form() -> Tensors:
        from tvm import te, topi

        data = te.placeholder((1, side, side, c), name="data")
        weight = te.placeholder((kernel, kernel, c, 1), name="weight")
        result = topi.nn.depthwise_conv2d_nhwc(data, weight, 1, kernel // 2, 1)
        return [data, weight, result]

    return form


def _softmax(rows: int, columns: int) -> Form:
    def form() -> Tensors:
        from tvm import te, topi

        x = te.placeholder((rows, columns), name="x")
        return [x, topi.nn.softmax(x, axis=1)]

    return form


def _layer_norm(rows: int, columns: int) -> Form:
    def form() -> Tensors:
        from tvm import te, topi

        x = te.placeholder((rows, columns), name="x")
        scale, bias = (te.placeholder((columns,), name=name) for name in ("scale", "bias"))
        return [x, scale, bias, topi.nn.layer_norm(x, scale, bias, [1])]

    return form


FORMS: dict[str, tuple[Form, ...]] = {
    "matmul 512x512x512": (_matmul(512, 512, 512),),
    "matmul 128x768x3072": (_matmul(128, 768, 3072),),
    "matmul 128x3072x768": (_matmul(128, 3072, 768),),
    "batched matmul 12x128x128x64": (_matmul(128, 128, 64, batch=12),),
    "conv2d 1x1 256->64 56x56": (_conv2d(256, 56, 64, 1, 1),),
    "conv2d 3x3 64->64 56x56": (_conv2d(64, 56, 64, 3, 1), _winograd(64, 56, 64)),
    "conv2d 3x3 256->256 14x14": (_conv2d(256, 14, 256, 3, 1), _winograd(256, 14, 256)),
    "conv2d 3x3/2 128->128 56x56": (_conv2d(128, 56, 128, 3, 2),),
    "conv2d 7x7/2 3->64 224x224": (_conv2d(3, 224, 64, 7, 2),),
    "depthwise 3x3 96 112x112": (_depthwise(96, 112, 3),),
    "softmax 1536x128": (_softmax(1536, 128),),
    "layer_norm 384x768": (_layer_norm(384, 768),),
}
"""Operators by name, each in all forms that TVM is given."""
A_ROUND = 32
"""Kernels TVM builds before it measures them: half its default, so that a limit is kept closely."""


def module_of(form: Form) -> Any:
    """TVM's module of one function, `main`."""
    import tvm
    from tvm import te

    function = te.create_prim_func(form())
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def target() -> Any:
    """This machine's CPU as TVM names it, with one core for a kernel."""
    import tvm
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return tvm.target.Target({
        "kind": "llvm",
        "mcpu": binding.get_host_cpu_name(),
        "mattr": [f"+{name}" for name, on in sorted(features.items()) if on],
        "num-cores": 1,
    })  # fmt: skip


def packed(module: Any) -> Any:
    """The module with its constant operands taken to be laid out already."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)


def built(module: Any, target: Any, _parameters: Any = None) -> Any:
    """A kernel that runs, as TVM's worker processes build it."""
    import tvm

    return tvm.driver.build(packed(module), target=target)


def search(form: Form, folder: Path, seconds: float) -> None:
    """Search by MetaSchedule with all cores; its records are written to `folder` as it goes."""
    import tvm.s_tir.tensor_intrin  # noqa: F401 - see the module's docstring
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.meta_schedule import measure_callback

    @derived_object
    class Deadline(measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(self, *_: Any) -> None:
            if time.monotonic() > end:
                raise RuntimeError("the time is up")  # TVM hands it on by that type

    callbacks = [measure_callback.AddToDatabase(), measure_callback.UpdateCostModel(), Deadline()]
    builder = meta_schedule.builder.LocalBuilder(f_build=built)
    module, machine = module_of(form), target()
    end = time.monotonic() + seconds
    try:
        meta_schedule.tune_tir(
            module, machine, str(folder), max_trials_global=1_000_000,
            num_trials_per_iter=A_ROUND, seed=0, builder=builder, measure_callbacks=callbacks,
        )  # fmt: skip
    except RuntimeError:
        if time.monotonic() < end:
            raise


@click.command(help=__doc__)
@click.argument("name", metavar="OPERATOR", type=click.Choice(list(FORMS)))
@click.argument("number", metavar="FORM", type=int)
@click.argument("folder", type=Path)
@click.argument("seconds", type=float)
def main(name: str, number: int, folder: Path, seconds: float) -> None:
    search(FORMS[name][number], folder, seconds)


if __name__ == "__main__":
    main()

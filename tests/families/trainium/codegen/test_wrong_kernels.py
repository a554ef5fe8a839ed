"""Kernels that no core could run are refused with one sentence that names line or instruction."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError, TilesmithError, VerificationError

P, F = 128, 64


@pytest.fixture
def begun(trn1):
    """A kernel, an input of [128, 64], and a tile that holds it."""
    kernel = Kernel("mine", trn1)
    x, tile = kernel.input("x", (P, F)), kernel.sbuf((P, F))
    kernel.load(tile, x)
    return kernel, x, tile


def of_another(k):
    other = Kernel("other", k.core)
    return other.input("z", (P, F)), [other.sbuf((P, F)) for _ in range(4)][3]


AT_ONCE = [
    (lambda k, x, t: k.reduce(t[:, :1], t, "is_ge"), "unknown reduction 'is_ge'; one of add"),
    (lambda k, x, t: k.reduce(t[:, :8], t.split(1, 4, 16), "add"), "not what is left"),
    (lambda k, x, t: k.tensor_scalar_reduce(t, t, "add", 1.0, "add", None), "operand out2"),
    (lambda k, x, t: k.tensor_tensor(t, t, "add", None), "needs a tile as its operand in1"),
    (lambda k, x, t: k.memset(None, 0.0), "needs a tile as its operand out"),
    (lambda k, x, t: k.activation(t, ["exp"], t), "unknown activation"),
    (lambda k, x, t: k.iota(t, 1.5, 0, 1), "a number of iota is a whole number, not 1.5"),
    (lambda k, x, t: k.iota(t, 2**70, 0, 1), "a number of iota is 11805.* is expected"),
    (lambda k, x, t: k.load(t, x, queue="a"), "a queue is a whole number, not 'a'"),
    (lambda k, x, t: k.gather(t, x[0].broadcast(P), t[:, :1], F, 0), "at least 1"),
    (lambda k, x, t: k.shuffle(t, t, None), "a sequence of whole numbers is expected, not None"),
    (lambda k, x, t: k.memset(k.sbuf((P, 1), "int8"), float("nan")), "int8, which holds no NaN"),
    (lambda k, x, t: k.memset(t, 10**400), "a scalar is a number"),
    (lambda k, x, t: k.interleave(-5), "is -5; at least 0"),
    (lambda k, x, t: k.sbuf(P), "the shape of 'tile': a sequence"),
    (lambda k, x, t: k.sbuf((P, 1.5)), "entry 1, is a whole number, not 1.5"),
    (lambda k, x, t: k.sbuf((P, 1), ["int8"]), r"unknown dtype '\['int8'\]'"),
    (lambda k, x, t: k.sbuf((P, 1), address="4"), "the address of tile 'tile' is a whole"),
    (lambda k, x, t: k.psum((P, 1), bank=0.5), "a bank of PSUM is a whole number"),
    (lambda k, x, t: k.buffers(0, (P, 1)), "the count of buffers is 0; at least 1"),
    (lambda k, x, t: t.split(1, 0, F), "entry 0, is 0; at least 1"),
    (lambda k, x, t: t[:, :1].broadcast(-F), "axes to broadcast to, entry 0, is -64"),
    (lambda k, x, t: t[..., ...], r"'\.\.\.' once"),
    (lambda k, x, t: k.free(x), "tensor 'x' is in HBM"),
    (lambda k, x, t: [k.free(t), k.free(t)], "tile 'tile' was given back before"),
    (lambda k, x, t: k.load(t, of_another(k)[0]), "'z' is not of kernel 'mine', but of another"),
    (lambda k, x, t: k.copy(of_another(k)[1], t), "'tile' is not of kernel 'mine', but of another"),
    (lambda k, x, t: Kernel("k", load_target("trn1")), "which a Target is not"),
]


@pytest.mark.parametrize(("write", "message"), AT_ONCE)
def test_what_no_instruction_takes_is_refused_where_it_is_written(begun, write, message):
    with pytest.raises(TilesmithError, match=message) as caught:
        write(*begun)
    assert "test_wrong_kernels.py:" in str(caught.value)


def products(dtype):
    def write(k, x, t):
        narrow = k.sbuf((P, F), dtype)
        k.copy(narrow, t)
        k.matmul(k.psum((F, F)), narrow, narrow)

    return write


VERIFIED = [
    (lambda k, x, t: k.copy(t[:, :1].broadcast(F), t), "vector copy .*: out is broadcast"),
    (lambda k, x, t: k.load(t[:, :1].broadcast(F), x), "load .*: out is broadcast"),
    (lambda k, x, t: k.activation(t, "exp", t, sums=t[:, :1]), "out and out2 share elements"),
    (lambda k, x, t: k.copy(t[:, 1:], t[:, :-1]), "takes the place of elements of in0 before"),
    (lambda k, x, t: k.copy(t, t[:, ::-1]), "takes the place of elements of in0 before"),
    (lambda k, x, t: k.tensor_tensor(t, t, "add", t[:, :1].broadcast(F)), "elements of in1 before"),
    (lambda k, x, t: k.reduce(t[:, 8:16], t.split(1, 8, 8), "max"), "elements of in0 before"),
    (lambda k, x, t: k.gather(t, x[0].broadcast(P), t[:, :1], F, 129), "ends at byte 33024 of a"),
    (lambda k, x, t: k.gather(t, x[0].broadcast(P), t[:, :2], F, P), "takes one index a partition"),
    (lambda k, x, t: k.gather(t, x, t[:, :1], F, P), "its first axis has step 0"),
    (products("int8"), "matmul .*: stationary is of int8; the tensor engine multiplies floating"),
]


@pytest.mark.parametrize(("write", "message"), VERIFIED)
def test_what_breaks_a_law_names_line_and_instruction(begun, write, message):
    write(*begun)
    with pytest.raises(VerificationError, match=message) as caught:
        begun[0].finish()
    text = str(caught.value)
    assert "test_wrong_kernels.py:" in text and "kernel 'mine', instruction " in text


@pytest.mark.parametrize(
    "write",
    [
        lambda k, t, one: k.copy(t[:, :-1], t[:, 1:]),
        lambda k, t, one: k.reduce(t[:, :1], t, "add"),
        lambda k, t, one: k.reduce(t[:, :8], t.split(1, 8, 8), "max"),
        lambda k, t, one: k.tensor_scalar(t, t, "subtract", t[:, 5:6]),
        lambda k, t, one: k.activation(t[:, 1::2], "exp", t[:, ::2], sums=one),
    ],
)
def test_elements_that_are_read_before_they_are_written_may_be(begun, write):
    kernel, _, tile = begun
    write(kernel, tile, kernel.sbuf((P, 1)))
    kernel.finish()


@pytest.mark.parametrize("index", [-1.0, 64.0, float("nan")])
def test_indices_out_of_range_are_named_when_they_are_there(begun, index):
    kernel, _, tile = begun
    y, picked = kernel.output("y", (P, F)), kernel.sbuf((P, F))
    kernel.local_gather(picked, tile, tile[:, :4])
    kernel.store(y, picked)
    x = np.zeros((P, F), np.float32)
    x[3, 2] = index
    message = rf"test_wrong_kernels.*instruction 1 .*index {index:g} of partition 3 is none of 0 to"
    with pytest.raises(InputError, match=message):
        execute(kernel.finish(), {"x": x})


@pytest.mark.parametrize("given", [None, "x", np.full((P, F), "a"), np.full((P, F), 1j)])
def test_inputs_that_are_no_numbers_are_refused(begun, given):
    kernel, _, tile = begun
    kernel.store(kernel.output("y", (P, F)), tile)
    with pytest.raises(InputError, match="input 'x' of kernel 'mine'"):
        execute(kernel.finish(), {"x": given})

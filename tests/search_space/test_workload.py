"""Workloads: canonical keys that parse back, and one sentence for each mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.epilogue import STEPS, EpilogueStep
from tilesmith.search_space.workloads.workload import Workload, canonical_key, shape_text

steps = st.sampled_from(sorted(n for n, kind in STEPS.items() if not kind.takes)).flatmap(
    lambda name: st.tuples(*[st.floats(-100, 100, width=16) for _ in STEPS[name].arguments]).map(
        lambda numbers: EpilogueStep(name, numbers)
    )
)


@given(
    st.tuples(*[st.integers(1, 4096)] * 3),
    st.integers(1, 9),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.sets(st.sampled_from(["a", "b"])),
    st.lists(steps, max_size=3),
    st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_key_parses_back(
    mnk: tuple[int, ...],
    batch: int,
    transposes: tuple[int, ...],
    constants: set[str],
    epilogue: list[EpilogueStep],
    dtype: str,
) -> None:
    names = ("m", "n", "k", "batch", "ta", "tb")
    parameters = dict(zip(names, (*mnk, batch, *transposes), strict=True))
    workload = Workload.of(
        "matmul", parameters, dtype=dtype, constants=constants, epilogue=epilogue
    )
    assert Workload.parse(workload.key) == workload
    assert Workload.parse(workload.key).digest == workload.digest


def test_key_is_canonical() -> None:
    first = Workload.parse("matmul k=3 m=1 n=2 batch=1 const=b,a dtype=float32")
    assert first.key == "matmul m=1 n=2 k=3 const=a,b"
    assert str(first) == first.key
    assert Workload.parse("matmul m=1 n=2 k=3 epilogue=clip:0:6").key == (
        "matmul m=1 n=2 k=3 epilogue=clip"
    )
    assert first.digest != Workload.parse("matmul m=1 n=2 k=4 const=a,b").digest


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("attention m=9 n=9 k=64 scale=0.125", "attention m=9 n=9 k=64"),
        ("attention m=9 n=9 k=32 scale=0.17677669", "attention m=9 n=9 k=32"),
        ("attention m=9 n=9 k=32 v=32 scale=0.1767767", "attention m=9 n=9 k=32 scale=0.1767767"),
        ("attention m=9 n=9 k=64 v=32 scale=0.25", "attention m=9 n=9 k=64 v=32 scale=0.25"),
        (
            "slice shape=[b]x4 starts=0x2 sizes=[b]x2 steps=1x1",
            "slice shape=[b]x4 starts=0x2 sizes=[b]x2",
        ),
        (
            "slice shape=4x4 starts=0x0 sizes=2x2 steps=2x1",
            "slice shape=4x4 starts=0x0 sizes=2x2 steps=2x1",
        ),
        ("reduce shape=3x5 axes=0x1", "reduce shape=3x5"),
        ("reduce shape=3x5 axes=1", "reduce shape=3x5 axes=1"),
        (
            "gather_packed shape=37x18 block=16 group=2 fill=2 indices=7",
            "gather_packed shape=37x18 block=16 group=2 indices=7",
        ),
        (
            "elementwise shape=3x[s] expression=add(x0,x1) x0=3x[s] x1=[s]",
            "elementwise shape=3x[s] expression=add(x0,x1) x1=[s]",
        ),
    ],
)
def test_what_says_the_same_as_a_default_is_in_no_key(said: str, key: str) -> None:
    assert Workload.parse(said) == Workload.parse(key)
    assert Workload.parse(said).key == key == canonical_key(said)


def test_a_key_that_names_no_workload_stays_as_it_is() -> None:
    for text in ("unheard_of m=1", "matmul m=1", "matmul m=² n=1 k=1", ""):
        assert canonical_key(text) == text


def test_the_type_of_sums_is_in_no_key() -> None:
    """Old keys never held it at its default; with another they are refused."""
    assert Workload.parse("matmul m=1 n=2 k=3 accumulate=float32").key == "matmul m=1 n=2 k=3"
    with pytest.raises(WorkloadError, match=r"sums is not to choose.* leave out accumulate="):
        Workload.parse("matmul m=1 n=2 k=3 accumulate=float64")


def test_parameters_are_read() -> None:
    workload = Workload.parse("conv2d c=3 h=8 w=9 oc=4 kh=3 kw=3 stride=2x1 pad=1")
    assert workload.integer("n") == 1
    assert workload.shape("stride") == (2, 1)
    assert workload.shape("pad") == (1,)
    assert workload["pad"] == "1"
    assert shape_text((2, 3)) == "2x3"
    assert shape_text(()) == "scalar"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty workload"),
        ("matmull m=1 n=1 k=1", "unknown operator 'matmull'; did you mean 'matmul'"),
        ("matmul m=1 n=1", r"needs k= \(columns of a, rows of b\)"),
        ("matmul m=1 n=1 k=1 z=2", "no parameter 'z'; it takes m, n, k"),
        ("elementwise shape=8 op=relu", "no parameter 'op'; .* as in 'elementwise .*expression="),
        ("matmul m=1 n=1 k=1 m=2", "'m' is given twice"),
        ("matmul m=1 n=1 k", "'k' in .* is not of the form NAME=VALUE"),
        ("softmax shape=3by4", "'shape=3by4' of operator 'softmax' is no list of integers"),
        ("matmul m=0 n=1 k=1", "m=0 is out of range; at least 1"),
        ("matmul m=-4 n=1 k=1", "m=-4 is out of range"),
        ("matmul m=1 n=1 k=1 batch=two", "batch='two' is not an integer"),
        ("matmul m=1 n=1 k=1 dtype=float31", "unknown dtype 'float31'; did you mean 'float32'"),
        ("matmul m=1 n=1 k=1 epilogue=relu6", "unknown epilogue step 'relu6'; did you mean 'relu'"),
        ("matmul m=1 n=1 k=1 epilogue=clip:0", "'clip' takes 2 numbers"),
        ("matmul m=1 n=1 k=1 epilogue=clip:0:x", "'clip:0:x' has a part that is no number"),
        ("conv2d c=3 h=8 w=8 oc=4 kh=9 kw=9", "kernel does not fit"),
        ("conv2d c=3 h=8 w=8 oc=4 kh=3 kw=3 groups=2", "groups=2 must divide c=3"),
        ("conv2d c=3 h=8 w=8 oc=4 kh=3 kw=3 pad=1x1x1", "one, two or four integers"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Workload.parse(text)


def test_a_shape_parameter_given_as_a_word_is_refused() -> None:
    with pytest.raises(WorkloadError, match="m='many' is not an integer"):
        Workload.parse("matmul m=many n=1 k=1")

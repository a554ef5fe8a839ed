"""Models around operators that once ran on the host of trn1: latency, and what is left there.

    python -m benchmarks.accelerator.left_the_host [--target trn2] [--precision bf16]

A transfer to the host and back is 20 us and more by the target's own numbers; what stays there is
printed; the rest of a line: `small_models.py`.
"""

from __future__ import annotations

try:
    import numpy as np

    from benchmarks.accelerator.subjects.small_models import main
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

STEPS = 12
"""Of recurrences that an exporter wrote step by step."""

CASES = {
    "running sums 16x256": "(float[16,256] x) => (float[16,256] y) "
    "{ a = Relu(x) b = CumSum(a, last) y = Tanh(b) }",
    "running sums 1x8192": "(float[1,8192] x) => (float[1,8192] y) "
    "{ a = Relu(x) b = CumSum(a, last) y = Tanh(b) }",
    "running sums 8x64x64, backwards": "(float[8,64,64] x) => (float[8,64,64] y) "
    "{ a = Relu(x) b = CumSum<exclusive=1, reverse=1>(a, middle) y = Tanh(b) }",
    "rows written in steps 2x12x48": f"(float[2,{STEPS},48] x) => (float[2,{STEPS},48] y) "
    "{ r = Relu(x) "
    + " ".join(
        f"p{t} = Slice(r, n{t}, n{t + 1}, middle) h{t + 1} = Tanh(p{t}) "
        f"s{t + 1} = ScatterElements<axis=1>(s{t}, at{t}, h{t + 1})"
        for t in range(STEPS)
    )
    + f" y = Relu(s{STEPS}) }}",
    "lower triangle 8x128x128": "(float[8,128,128] x) => (float[8,128,128] y) "
    "{ a = Relu(x) b = Trilu<upper=0>(a) y = Tanh(b) }",
    "one of 40 places, for 5 x 16": "(int64[5,16] x) => (float[5,16,40] y) "
    "{ a = OneHot(x, forty, both) y = Neg(a) }",
    "best 20 of 200, their boxes": "(float[1,200,8] x, float[1,200,4] z) => (float[1,20,4] y) "
    "{ m = ReduceMax<keepdims=0>(x, second) v, i = TopK(m, twenty) u = Unsqueeze(i, second) "
    "e = Expand(u, boxes) c = Sigmoid(z) p = GatherElements<axis=1>(c, e) y = Neg(p) }",
    "best 3 of 40, in 200 rows": "(float[200,40] x) => (float[200,3] y) "
    "{ a = Tanh(x) v, i = TopK(a, three) y = Neg(v) }",
    "LSTM, 16 steps of 256": "(float[16,1,256] x) => (float[16,1,1,256] y) "
    "{ y = LSTM<hidden_size=256>(x, lstm, lstm) }",
    "GRU, 16 steps of 256": "(float[16,1,256] x) => (float[16,1,1,256] y) "
    "{ y = GRU<hidden_size=256>(x, gru, gru) }",
    "real parts of 32x128 pairs": "(float[32,128,2] x) => (float[32,128] y) "
    "{ a = Relu(x) y = Gather<axis=2>(a, first) }",
    "rows picked everywhere 64x96": "(float[64,96] x) => (float[16,96] y) "
    "{ a = Relu(x) y = GatherElements<axis=0>(a, picked) }",
}
_RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "last": np.array(-1),
    "middle": np.array([1]),
    "lstm": _RANDOM.standard_normal((1, 1024, 256)).astype(np.float32) / 16,
    "gru": _RANDOM.standard_normal((1, 768, 256)).astype(np.float32) / 16,
    "forty": np.array(40),
    "first": np.array(0),
    "both": np.array([0, 1], np.float32),
    "second": np.array([2]),
    "three": np.array([3]),
    "twenty": np.array([20]),
    "boxes": np.array([1, 20, 4]),
    "s0": np.zeros((2, STEPS, 48), np.float32),
    "picked": np.broadcast_to(_RANDOM.integers(0, 64, (16, 1)), (16, 96)).copy(),
    **{f"n{t}": np.array([t]) for t in range(STEPS + 1)},
    **{f"at{t}": np.full((2, 1, 48), t) for t in range(STEPS)},
}


if __name__ == "__main__":
    main(__doc__, CASES, WEIGHTS)

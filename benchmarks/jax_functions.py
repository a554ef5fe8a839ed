"""Functions of jax.numpy, jax.nn and jax.lax, compiled one by one and compared with JAX itself.

    python -m benchmarks.jax_functions [--only NAME] [--details]

Each is called on small arrays, compiled through StableHLO for this machine, and what comes out is
compared with `jax.jit` of the same function. Printed for each: `agree`; `refused` and the sentence;
or `wrong` and how far. Functions of shapes that depend on values, and calls of JAX's libraries, are
among those that may be refused.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

try:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import tilesmith
    from benchmarks.subjects.jax_cases import WRITTEN, listed
    from benchmarks.subjects.jax_complex_cases import COMPLEX, complex_listed
    from tilesmith.search_space.support.errors import TilesmithError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, str]:
    """One of agree, refused, wrong, failed, and what there is to say of it."""
    try:
        wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    except Exception as error:
        return "not of jit", str(error).splitlines()[0][:90]
    try:
        compiled = tilesmith.from_jax(function, *arguments)
        found = jax.tree.leaves(compiled(*arguments))
    except TilesmithError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"[:200]
    host = ", ".join(name.split()[0] for name in compiled.executable.report.host_nodes)
    for ours, theirs in zip(found, wanted, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return "wrong", f"{ours.dtype}{ours.shape} for {theirs.dtype}{theirs.shape}"
        wide = np.complex128 if np.iscomplexobj(theirs) else np.float64
        a, b = np.asarray(ours, wide), np.asarray(theirs, wide)
        loose = ours.dtype in (jnp.bfloat16, jnp.float16)
        finite = np.abs(b[np.isfinite(b)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        tolerance = (2e-2 if loose else 2e-5) * scale
        if not np.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True):
            return "wrong", f"by {np.nanmax(np.abs(a - b)):.3g} of {scale:.3g}"
    return "agree", f"on the host: {host}" if host else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="functions whose names hold this text")
    parser.add_argument("--details", action="store_true", help="say what runs on the host")
    chosen = parser.parse_args()
    counts: Counter[str] = Counter()
    for name, function, arguments in (
        *listed(),
        *complex_listed(),
        *((name, *case) for name, case in (WRITTEN | COMPLEX).items()),
    ):
        if chosen.only not in name:
            continue
        kind, note = outcome(function, arguments)
        counts[kind] += 1
        if kind != "agree" or chosen.details:
            print(f"{kind:10} {name}{': ' if note else ''}{note}", flush=True)
    print(", ".join(f"{number} {kind}" for kind, number in counts.most_common()))
    return 1 if counts["wrong"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Mutants of StableHLO modules: each compiles, or is refused in a sentence.

    python -m benchmarks.stablehlo_fuzzing [--cases 2000] [--seed 0]

Texts and artifacts of what JAX writes for a few functions are changed at random (numbers, words,
bytes, lines), and read in worker processes: an error that is not Tilesmith's own, or a process that
ends, is a defect, and so is one that takes a minute of processor time. Printed are the counts, and
each defect with the module that shows it. Modules name no places in sources, so that a seed draws
the same mutants wherever this lies.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

try:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from tilesmith.search_space.support.errors import TilesmithError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

_NUMBERS = ("-1", "0", "1", "2", "7", "4294967296", "9223372036854775807", "-9223372036854775808")
_SECONDS = 60.0
"""Of processor time, which a busy or stopped machine does not use up."""
_STILL = 900.0
"""Seconds after which a worker waits for something that never comes."""


def seeds() -> list[bytes]:
    """Modules to begin with, as text and as artifacts."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
    x = np.ones((2, 5, 8), np.float32)
    i = np.array([0, 3, 1], np.int32)
    image, kernel = np.ones((1, 6, 6, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)
    layout = ("NHWC", "HWIO", "NHWC")
    functions = (
        (lambda x: jax.nn.softmax(x @ x.transpose(0, 2, 1)), (x,)),
        (lambda x, i: (jnp.take(x, i, axis=1), x.at[:, i].add(1.0), x[0, i, i]), (x, i)),
        (lambda x: (jnp.sort(x), jnp.argmax(x, 1), jnp.cumsum(x, 2), jnp.pad(x, 1)), (x,)),
        (lambda x, k: jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=layout), (image, kernel)),
        (lambda x: jax.lax.scan(lambda c, y: (c * y, c), x[0], x), (x,)),
        (lambda x, i: jax.lax.switch(i[0], [jnp.exp, jnp.sin], x), (x, i)),
        (lambda x: jax.lax.dynamic_slice(x, (0, x[0, 0, 0].astype(int), 1), (1, 2, 3)), (x,)),
    )  # fmt: skip
    found = []
    for function, arguments in functions:
        found.append(jax.jit(function).lower(*arguments).as_text().encode())
        found.append(jax.export.export(jax.jit(function))(*arguments).mlir_module_serialized)
    return found


def mutant(module: bytes, rng: np.random.Generator) -> bytes:
    """A module with one to three changes."""
    for _ in range(int(rng.integers(1, 4))):
        if module.startswith(b"ML\xefR"):
            changed = bytearray(module)
            changed[int(rng.integers(4, len(changed)))] = int(rng.integers(256))
            module = bytes(changed)
            continue
        text = module.decode(errors="replace")
        kind = rng.integers(4)
        if kind == 0 and (numbers := list(re.finditer(r"\d+", text))):
            place = numbers[int(rng.integers(len(numbers)))]
            text = text[: place.start()] + str(rng.choice(_NUMBERS)) + text[place.end() :]
        elif kind == 1:
            words = list(re.finditer(r"\w+", text))
            place, other = (words[int(n)] for n in rng.integers(len(words), size=2))
            text = text[: place.start()] + other.group() + text[place.end() :]
        elif kind == 2:
            lines = text.splitlines()
            del lines[int(rng.integers(len(lines)))]
            text = "\n".join(lines)
        else:
            place = int(rng.integers(len(text)))
            text = text[:place] + chr(int(rng.integers(32, 127))) + text[place + 1 :]
        module = text.encode()
    return module


def _work(connection: Connection) -> None:
    """Read modules until there are no more; tell how each went."""
    from tilesmith.capabilities.stablehlo.importer import import_stablehlo
    from tilesmith.compiler.driver.build import prepared

    while True:
        module = connection.recv_bytes()
        if not module:
            return
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # whose signal ends the process
        try:
            prepared(import_stablehlo(module, "mutant"))
            connection.send("compiled")
        except TilesmithError as error:
            connection.send("refused" if "\n" not in str(error) else f"two lines: {error}")
        except BaseException as error:
            connection.send(f"{type(error).__name__}: {error}")


def outcomes(modules: Iterator[bytes]) -> Iterator[tuple[bytes, str]]:
    """How each module went; a worker that ended is replaced."""
    context = multiprocessing.get_context("spawn")
    connection, worker = None, None
    for module in modules:
        if connection is None or worker is None:
            connection, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs,), daemon=True)
            worker.start()
            theirs.close()
        try:
            connection.send_bytes(module)
            told = connection.recv() if connection.poll(_STILL) else "stands still"
        except (EOFError, ConnectionError):
            worker.join()
            slow = worker.exitcode == -signal.SIGPROF
            told = "took too long" if slow else "ended the process"
        yield module, told
        if told in ("took too long", "stands still", "ended the process"):
            worker.kill()
            connection = None
    if connection is not None:
        connection.send_bytes(b"")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for modules that show defects")
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    known = seeds()
    modules = (mutant(known[int(rng.integers(len(known)))], rng) for _ in range(chosen.cases))
    counts: Counter[str] = Counter()
    for number, (module, told) in enumerate(outcomes(modules)):
        counts[told if told in ("compiled", "refused") else "defect"] += 1
        if told not in ("compiled", "refused"):
            print(f"case {number}: {told[:300]}", flush=True)
            if chosen.keep is not None:
                chosen.keep.mkdir(exist_ok=True)
                (chosen.keep / f"{number}.mlir").write_bytes(module)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["defect"] else 0


if __name__ == "__main__":
    sys.exit(main())

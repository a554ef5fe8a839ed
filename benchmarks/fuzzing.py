"""Tens of thousands of wrong models: each is compiled and run, or refused in a sentence.

    python -m benchmarks.fuzzing --cases 20000 --seed 0

Every case runs in a child process, which native code may end without ending the search. Anything
but success or a deliberate refusal is a finding: it is printed with its number, its model is
written to `--findings`, and the exit code is 1. One case again: `--first N --cases 1`.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

try:
    import numpy as np

    from benchmarks.subjects.mutants import mutant, seeds
    from tilesmith.codegen.host.machine import host_target
    from tilesmith.compiler.driver.build import build
    from tilesmith.compiler.onnx.importer import import_model
    from tilesmith.jobs.compilation.compiling import random_inputs
    from tilesmith.search_space.support.errors import InputError, JobError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

_SECONDS = 60
"""A case that takes more processor time is a finding; or ten times that by the clock, which runs on
where a machine is busy or stops us."""

_MEMORY = 12 << 30
"""Bytes of address space a child has."""

_RUN_BYTES = 1 << 24
"""Models that need more memory are compiled and not run."""

_HEAD = struct.Struct("<qH")


def verdict(content: bytes, folder: Path, run: bool = True) -> str:
    """What became of a model file: "compiled", "ran", or the kind of refusal.

    Raises:
        Exception: whatever is no refusal, which is a defect.
    """
    path = folder / "mutant.onnx"
    path.write_bytes(content)
    try:
        graph = import_model(path)
        needed = sum(info.nbytes for info in graph.tensors.values() if info.known)
        if needed > _RUN_BYTES:
            return "too large to compile here"
        executable = build(graph, host_target())
    except InputError as error:
        return f"refused ({type(error).__name__})"
    if not run:
        return "compiled"
    try:
        executable.run(random_inputs(executable))
    except (InputError, JobError) as error:
        return f"failed on these inputs ({type(error).__name__})"
    return "ran"


def case(seed: int, number: int) -> bytes:
    """The model of a case."""
    rng = np.random.default_rng((seed, number))

    def choose(n: int) -> int:
        return int(rng.integers(n))

    known = seeds()
    return mutant(known[choose(len(known))], choose)


def _child(seed: int, first: int, last: int, pipe: int, run: bool) -> None:
    """Report each case as (number, length, text); length 0 when it begins."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, last):
            os.write(pipe, _HEAD.pack(number, 0))
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            signal.alarm(10 * _SECONDS)
            try:
                text = verdict(case(seed, number), Path(folder), run)
            except BaseException as error:
                frames = traceback.extract_tb(error.__traceback__)
                ours = [f for f in frames if "/tilesmith/" in f.filename] or frames
                where = f"{ours[-1].filename.rpartition('/tilesmith/')[2]}:{ours[-1].lineno}"
                text = f"! {type(error).__name__} at {where}: {' '.join(str(error).split())}"
            content = text.encode()[:600]
            os.write(pipe, _HEAD.pack(number, len(content)) + content)
    os._exit(0)


def search(seed: int, first: int, cases: int, run: bool = True) -> dict[int, str]:
    """What became of each case, by its number; findings begin with an exclamation mark."""
    seeds()  # once, before children are forked
    found: dict[int, str] = {}
    number, last = first, first + cases
    while number < last:
        reader, writer = os.pipe()
        with warnings.catch_warnings():  # newer Pythons warn of threads, which idle here
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(reader)
            _child(seed, number, last, writer, run)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            while len(head := stream.read(_HEAD.size)) == _HEAD.size:
                number, length = _HEAD.unpack(head)
                if length:
                    found[number] = stream.read(length).decode(errors="replace")
        _, status = os.waitpid(child, 0)
        if status:
            found[number] = f"! the process died of signal {status & 127}"
        number += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-run", dest="run", action="store_false", help="only compile")
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    asked = parser.parse_args()
    found = search(asked.seed, asked.first, asked.cases, asked.run)
    wrong = {number: text for number, text in found.items() if text.startswith("!")}
    for text, count in Counter(t for t in found.values() if not t.startswith("!")).most_common():
        print(f"{count:7} {text}")
    print(f"{len(wrong):7} findings")
    for number, text in wrong.items():
        asked.findings.mkdir(parents=True, exist_ok=True)
        (asked.findings / f"{asked.seed}_{number}.onnx").write_bytes(case(asked.seed, number))
        print(f"  {number}: {text}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

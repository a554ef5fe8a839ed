"""Watching the passes of a compilation, and telling what they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilesmith.jobs.requests.request import Resolved


@dataclass(frozen=True)
class ListedPass:
    """A pass as people and scripts read of it; `options` by name."""

    name: str
    summary: str
    contract: str
    options: dict[str, str]


def listed_passes(asked: Resolved) -> list[ListedPass]:
    """Every pass of a compilation, in order.

    Raises:
        TargetError, ModelError: models cannot run on the target, or not in the precision.
    """
    from tilesmith.compiler.driver.pipeline import every_pass

    return [
        ListedPass(step.name, step.summary, step.contract, step.options)
        for step in every_pass(asked.target, asked.precision, asked.bits)
    ]


@contextmanager
def watched_passes(verify: bool, dump: Path | None) -> Iterator[None]:
    """Passes inside the block are dumped into a folder, and verified after that.

    Raises:
        InputError: the folder cannot be written in, or holds other files.
        VerificationError: a pass left a wrong graph behind.
    """
    from tilesmith.compiler.driver.verifier import Verifier
    from tilesmith.compiler.rewriting.dump import Dump
    from tilesmith.compiler.rewriting.graph_pass import Observer, observed

    observers: list[Observer] = [] if dump is None else [Dump(dump)]
    if verify:
        observers.append(Verifier())
    with observed(*observers):
        yield

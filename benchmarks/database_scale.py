"""The tuning database at ten million trials: how long questions and commands take.

    python benchmarks/database_scale.py LOCATION [--trials 10000000] [--commands] [--explain]

LOCATION is a file or the URL of a PostgreSQL database; an empty one is filled first, as
`benchmarks/subjects/made_records.py` says. Questions are asked as the compiler and a tuning job ask
them, in one process: medians after one to warm up. `--commands` times whole processes from start to
end, the interpreter's start included. `--explain` prints the plans of the slowest statements.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

try:
    from benchmarks.database import median_ms
    from benchmarks.subjects.made_records import CPU, all_workloads, fill, model_workloads
    from tilesmith.records import Database
    from tilesmith.records.questions.queries import Filter
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


def questions(database: Database) -> dict[str, tuple[Callable[[], object], int]]:
    """What is asked, and how often it is repeated."""
    model, others = model_workloads(), all_workloads()
    turn = iter(others * 100)
    large = model[-1]
    return {
        "best schedule of a workload": (lambda: database.best(next(turn), CPU), 200),
        "best schedule of the largest": (lambda: database.best(large, CPU), 20),
        "bests of a model's 60 workloads": (lambda: database.bests(model, CPU), 20),
        "layout bests of them, as compile asks": (lambda: database.layout_bests(model, CPU), 20),
        "of any thread count": (lambda: database.layout_bests(model, CPU, None), 10),
        "db top": (lambda: database.overview(limit=20), 5),
        "bests of everything": (database.overview, 1),
        "db top of the largest workload": (lambda: database.top(large, limit=20), 10),
        "db query, newest": (lambda: database.query(limit=20), 10),
        "db query, fastest": (lambda: database.query(sort="fastest", limit=20), 3),
        "db query, crashes": (lambda: database.query(Filter(status="crash"), limit=20), 3),
        "db query, a workload": (lambda: database.query(Filter(workload=others[99]), limit=20), 3),
        "db query, the largest": (lambda: database.query(Filter(workload=large), limit=20), 3),
        "db query, a job": (lambda: database.query(Filter(job=7), limit=20), 3),
        "db stats": (database.stats, 1),
        "db show": (lambda: database.record(1_000_000 % 7919 + 1), 10),
        "a job's warm-up: before": (lambda: database.known(large, CPU, 1), 3),
        "a job's warm-up: nearest": (lambda: database.nearest(_parsed(model[3]), CPU, 1), 5),
        "a job's warm-up: quarantined": (lambda: database.quarantined(large, CPU), 3),
    }


def _parsed(key: str) -> object:
    from tilesmith.search_space.workloads.workload import Workload

    return Workload.parse(key)


def commands(location: str) -> dict[str, list[str]]:
    """Commands timed as whole processes."""
    large = model_workloads()[-1]
    asked = {
        "db top": ["top"],
        "db top WORKLOAD": ["top", large],
        "db query": ["query"],
        "db query --status crash": ["query", "--status", "crash"],
        "db stats": ["stats"],
        "db show": ["show", "12345"],
    }
    start = [sys.executable, "-m", "tilesmith", "db"]
    return {name: [*start, *words, "--database", location] for name, words in asked.items()}


def explain(database: Database) -> None:
    """Print what the engine does for the statements that take more than 5 ms."""
    from sqlalchemy import event

    with database.reading() as connection:
        engine = connection.engine
    slow: dict[str, tuple[float, object]] = {}

    def before(
        c: object, cursor: object, text: str, values: object, context: object, m: bool
    ) -> None:
        context.started = time.perf_counter()  # type: ignore[attr-defined]

    def after(
        c: object, cursor: object, text: str, values: object, context: object, m: bool
    ) -> None:
        took = time.perf_counter() - context.started  # type: ignore[attr-defined]
        if took > 0.005 and not text.startswith("EXPLAIN"):
            slow[text] = (took, values)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    words = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN (ANALYZE) "
    for name, (question, _) in questions(database).items():
        slow.clear()
        question()
        print(f"== {name}")
        for text, (took, values) in list(slow.items()):
            print(f"-- {took * 1e3:.1f} ms\n{text[:1500]}")
            with database.reading() as connection:
                for row in connection.exec_driver_sql(words + text, values):  # type: ignore[arg-type]
                    print("    ", *row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("location")
    parser.add_argument("--trials", type=int, default=10_000_000)
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--only", default="", help="Questions with this in their name.")
    arguments = parser.parse_args()
    with Database.open(arguments.location) as database:
        empty = not database.query(limit=1)
    if empty:
        fill(arguments.location, arguments.trials)
    with Database.open(arguments.location) as database:
        if arguments.explain:
            explain(database)
            return
        for name, (question, repeats) in questions(database).items():
            if arguments.only in name:
                print(f"{median_ms(question, repeats):10.2f} ms  {name}", flush=True)
    if arguments.commands:
        # As installed: with the compiled modules that the first run of a command leaves.
        kept = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
        for name, command in commands(arguments.location).items():
            run = lambda command=command: subprocess.run(  # noqa: E731
                command, check=True, capture_output=True, env=kept
            )
            print(f"{median_ms(run, 3) / 1e3:10.3f} s   tilesmith {name}", flush=True)


if __name__ == "__main__":
    main()

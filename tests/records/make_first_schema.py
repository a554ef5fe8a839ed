"""Makes `first_schema.sqlite3`, a small database of the first schema, as its users have it.

    python tests/records/make_first_schema.py

Run once, when the first schema was the newest. A later schema gets a file and a script of its own;
this file stays as it is, for `test_schema.py` to upgrade.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tilesmith.records import Toolchain, TuningRecord
from tilesmith.records.jobs.job import start
from tilesmith.records.schema import engine as engines
from tilesmith.records.schema.versioning import upgrade
from tilesmith.records.trials.writing import Writer, incoming
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config

FILE = Path(__file__).with_name("first_schema.sqlite3")
MOMENT = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
TARGET = Target.of("cpu", "cpu", {"lanes": Fact(16), "clock": Fact(4.0, calibratable=True)}, "box")


def records() -> list[TuningRecord]:
    """Trials of two workloads: both ways of measuring, layouts, a failure, one measured twice."""
    found = []
    for tile in (1, 2, 4):
        for layout in ("NCHW", "NCHW16c"):
            for by in ("hardware", "simulator"):
                latency = 1e-3 / tile + (1e-5 if layout == "NCHW" else 0.0)
                result = MeasureResult("ok", by, (latency,) * 3, "", (latency / 2,), "l2")
                config = Config.of(tile=tile, input_layout=layout, output_layout=layout)
                found.append(
                    TuningRecord(
                        "conv2d n=1 c=64 h=56 w=56 oc=64 kh=3 kw=3",
                        TARGET.identity,
                        config,
                        result,
                        input_layout=layout,
                        output_layout=layout,
                    )
                )
    crash = MeasureResult("crash", "hardware", (), "the worker died of signal 11")
    slow, again = (MeasureResult("ok", "hardware", (seconds,)) for seconds in (9e-6, 8e-6))
    key = "matmul m=64 n=64 k=64 const=b epilogue=bias,relu"
    found += [
        TuningRecord(key, TARGET.identity, Config.of(tile=tile), result, 2)
        for tile, result in ((3, crash), (5, slow), (5, again))
    ]
    return found


def main() -> None:
    FILE.unlink(missing_ok=True)
    engine = engines.make_engine(engines.parse_url(f"sqlite:///{FILE}"))
    with engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA page_size = 1024")
        connection.exec_driver_sql("BEGIN")
    toolchain = Toolchain("0.1.0", "0.50.0", "1", "1", "1", "0001")
    with engine.connect().execution_options(tilesmith_write=True) as connection, connection.begin():
        upgrade(connection, "0001")
        writer = Writer(connection)
        writer.target_id(TARGET)
        job = start(connection, "tilesmith tune model.onnx", 7, "evolutionary", '{"step": 3}')
        batch = [incoming(record, toolchain, "box", MOMENT) for record in records()]
        for item in batch:
            item.values["job_id"] = job
        writer.insert(batch, deduplicate=False)
    engine.dispose()


if __name__ == "__main__":
    main()

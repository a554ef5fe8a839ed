"""Makes `vector_lanes.sqlite3`, a small database as its users have it whose targets state the width
of vectors as `vector.lanes`, of float32.

    python tests/records/make_vector_lanes.py

Run once, by the last version that described CPUs so; this file stays as it is, for
`test_renamed_facts.py` to read.
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

FILE = Path(__file__).with_name("vector_lanes.sqlite3")
MOMENT = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
FEATURES = "+avx2,+fma,-avx512f"
TARGET = Target.of(
    "cpu",
    "cpu",
    {
        "isa.name": Fact("avx2", "LLVM", "V"),
        "isa.triple": Fact("x86_64-unknown-linux-gnu", "LLVM", "V"),
        "isa.processor": Fact("haswell", "LLVM", "V"),
        "isa.features": Fact(FEATURES, "LLVM", "V"),
        "vector.lanes": Fact(8, "instruction set", "V", "float32", minimum=1, maximum=64),
        "vector.registers": Fact(16, "instruction set", "V", minimum=4, maximum=128),
        "threads": Fact(8, "operating system", "V", minimum=1, maximum=1024),
        "clock.ghz": Fact(3.5, "microbenchmark", "F", "GHz", calibratable=True, minimum=0.01),
    },
    "haswell with avx2 vectors",
)
KEY = "matmul m=64 n=64 k=64 const=b epilogue=bias,relu"


def main() -> None:
    FILE.unlink(missing_ok=True)
    engine = engines.make_engine(engines.parse_url(f"sqlite:///{FILE}"))
    with engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA page_size = 1024")
        connection.exec_driver_sql("BEGIN")
    toolchain = Toolchain("0.1.0", "0.50.0", "3", "8", "4", "0002")
    with engine.connect().execution_options(tilesmith_write=True) as connection, connection.begin():
        upgrade(connection)
        writer = Writer(connection)
        writer.target_id(TARGET)
        start(connection, f"tilesmith tune --op ...  # {TARGET.identity}", 7, "evolutionary", "{}")
        records = [
            TuningRecord(
                KEY, TARGET.identity, Config.of(tile=tile), MeasureResult("ok", "hardware", (s,))
            )
            for tile, s in ((3, 9e-6), (5, 8e-6))
        ]
        batch = [incoming(record, toolchain, "box", MOMENT) for record in records]
        writer.insert(batch, deduplicate=False)
    engine.dispose()


if __name__ == "__main__":
    main()

"""Export and import in several processes: the same bytes and rows whatever their number."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilesmith.command_line import command_line
from tilesmith.records import Database, exporting
from tilesmith.records.exchange.parallel import in_order
from tilesmith.records.exporting import export_file
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.support.errors import DatabaseError

KEYS = [f"matmul m={m} n=8 k=8" for m in range(1, 9)]


@pytest.fixture
def filled(database, make_record, at):
    for number, key in enumerate(KEYS):
        database.add(
            make_record(i, (i + 1) * 1e-6, workload=key, created_at=at(i), status=status, host="ü")
            for i in range(number + 1)
            for status in (("ok", "crash") if i == 2 else ("ok",))
        )
    return database


def _exported(database, location, **more):
    file = io.BytesIO()
    count = export_file(database, location, file, more.pop("where", Filter()), **more)
    return count, file.getvalue()


def test_any_number_of_processes_writes_the_same_bytes(filled, location, monkeypatch):
    monkeypatch.setattr(exporting, "SERIES_IN_PART", 3)
    lines = list(filled.export_lines())
    count, plain = _exported(filled, location)
    assert plain.decode().splitlines() == lines and count == len(lines) - 1
    packed = _exported(filled, location, packed=True)[1]
    assert gzip.decompress(packed) == plain
    assert _exported(filled, location, packed=True, processes=2)[1] == packed
    failed = _exported(filled, location, where=Filter(status="crash"))
    assert failed[0] == 6


def test_any_number_of_processes_reads_the_same_rows(
    sqlite, make_record, tmp_path, empty_file, versions
):
    sqlite.add(make_record(i, 1e-6, workload=key) for key in KEYS for i in range(20))
    lines = [*sqlite.export_lines(), "", "{}"]
    found = []
    for processes in (1, 2):
        path = tmp_path / f"{processes}.db"
        path.write_bytes(empty_file.read_bytes())
        with Database.open(str(path), toolchain=versions[0]) as opened:
            if processes == 1:
                with pytest.raises(DatabaseError, match=rf"line {len(lines)} .*nothing was imp"):
                    opened.import_lines(lines)
            assert opened.query() == []
            report = opened.import_lines(lines, skip_bad=True, processes=processes)
            found.append((report, opened.query(sort="oldest", limit=None)))
    assert found[0] == found[1] and found[0][0].added == 160
    assert [number for number, _ in found[0][0].bad_lines] == [len(lines)]


def test_results_come_in_order_and_errors_through():
    asked = [*map(str, range(9)), "x"]
    found = in_order(int, asked, 2)
    assert [next(found) for _ in range(9)] == list(range(9))
    with pytest.raises(ValueError, match="invalid literal"):
        next(found)


def test_packed_files_go_out_and_in_by_their_ending(filled, location, tmp_path):
    def run(*words, code=0):
        result = CliRunner().invoke(command_line, ["db", *map(str, words)])
        assert result.exit_code == code, result.output
        return str(result.output) + str(result.exception)

    path, new = tmp_path / "all.jsonl.gz", tmp_path / "new.db"
    run("export", "--database", location, "-o", path)
    run("import", path, "--database", new)
    whole = gzip.decompress(path.read_bytes())
    assert "were there already" in run("import", path, "--database", new)
    run("export", "--database", new, "-o", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == whole
    path.write_bytes(path.read_bytes()[:-20])
    assert "no whole gzip file" in run("import", path, "--database", tmp_path / "b.db", code=2)
    assert "gzip" in run("export", "--database", new, "-o", tmp_path / "all.zst", code=2)


def test_an_import_that_is_killed_leaves_nothing_and_no_process(sqlite, make_record, tmp_path):
    """Its input comes through a pipe that stays open, so that it is killed midway."""
    pipe, path = tmp_path / "pipe.jsonl", tmp_path / "killed.db"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "tilesmith", "db", "import", str(pipe), "--jobs", "2"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [*command, "--database", str(path)], cwd=root, stderr=subprocess.DEVNULL
    )
    sqlite.add(make_record(i, 1e-6) for i in range(40))
    lines = list(sqlite.export_lines())
    with pipe.open("w") as file:
        file.write("\n".join([lines[0], *lines[1:] * 500]))
        file.flush()
        children = _children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 300
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children and not any(map(_alive, children))
    with Database.open(str(path)) as opened:
        assert opened.query() == []
        assert opened.import_lines(lines).added == len(lines) - 1


def _children(parent: int) -> list[int]:
    """Processes that a process started, once there are some."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = Path(f"/proc/{parent}/task/{parent}/children")
        numbers = [int(number) for number in found.read_text().split()]
        if len(numbers) >= 2:
            return numbers
        time.sleep(0.05)
    return []


def _alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

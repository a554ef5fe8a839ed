"""Processes that live and die: one tuner for all, none without a process that wants it."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tilesmith as ts
from tests.capabilities.first_use.conftest import Arrays, Starts, Still, right, the_order, tools
from tilesmith.capabilities.first_use import following, tuner
from tilesmith.capabilities.first_use.following import Follower, started
from tilesmith.capabilities.first_use.orders import (
    OrderState,
    digest_of,
    every,
    orders_folder,
    tuner_lock,
)
from tilesmith.capabilities.first_use.priority import MachineLoad
from tilesmith.capabilities.first_use.rounds import Tools, another, searched
from tilesmith.tuner.tasks.cancel import CancelToken


def test_two_processes_have_one_tuner_and_one_order(
    products: Path, x: Arrays, follower: Follower, starts: Starts
) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    code = (
        "import sys, tilesmith as ts\n"
        "from tilesmith.capabilities.first_use import following as f\n"
        "f._follower = f.Follower(start=lambda root: sys.exit('a second tuner'))\n"
        f"model = ts.compile({str(products)!r}, tune='background')\n"
        "print('compiled', flush=True)\n"
        "sys.stdin.readline()\n"
        "f._follower.look()\n"
        "print(model.report.default, f._follower._starts, flush=True)\n"
    )
    with tuner_lock(orders_folder()) as alone:
        assert alone
        other = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "compiled\n"
        another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
        follower.look()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "0 0\n", "it was exchanged, and started nothing"
        other.kill()
        other.communicate()
    assert model.report.default == 0
    assert list(the_order().owners()) == [the_order().path / "owners" / str(os.getpid())]


def test_a_real_tuner_works_and_ends_with_the_last_process(
    products: Path, x: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started, at work, killed, started again, and gone when nobody wants it."""
    own = Still(start=started)
    monkeypatch.setattr(following, "_follower", own)
    model = ts.compile(products, tune="background")
    own.look()
    process = own._process
    assert process is not None
    log = orders_folder() / "tuner.log"
    _until(lambda: "job 1 in" in log.read_text() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    own.look()
    again = own._process
    assert again is not None and again is not process
    assert right(model.run(x), x)
    own.close()
    assert again.wait() == 0, log.read_text()
    with tuner_lock(orders_folder()) as free:
        assert free


def _until(is_true: "object", seconds: float = 60.0) -> None:
    ended = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if is_true():  # type: ignore[operator]
            return
        ended.wait(0.1)


def test_tuners_that_crash_are_one_warning(
    products: Path, x: Arrays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crashing = Starts(code=-signal.SIGSEGV)
    own = Still(start=crashing)
    monkeypatch.setattr(following, "_follower", own)
    model = ts.compile(products, tune="background")
    for _ in range(8):
        own.look()
    assert crashing.count == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "the tuner ended 3 times, the last time by signal 11" in warnings[0]
    assert right(model.run(x), x)


@pytest.mark.parametrize("how", ["no folder", "a file", "others write"])
def test_a_folder_that_cannot_be_used_is_one_warning(
    products: Path, x: Arrays, follower: Follower, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    if how == "no folder":
        orders_folder().parent.parent.joinpath("cache").write_text(
            "a file where a folder should be"
        )
    elif how == "a file":
        orders_folder().parent.mkdir(parents=True)
        orders_folder().write_text("")
    else:
        orders_folder().mkdir(parents=True)
        orders_folder().chmod(0o777)
    model = ts.compile(products, tune="background")
    for _ in range(3):
        follower.look()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "'products.onnx' is not tuned any further, and stays as it is: '" in warnings[0]
    assert right(model.run(x), x)


def test_a_full_disk_is_one_warning(
    products: Path, x: Arrays, follower: Follower, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    model = ts.compile(products, tune="background")
    monkeypatch.setattr("tempfile.mkstemp", full)
    follower.look()
    assert "cannot be written: No space left on device" in caplog.text
    assert right(model.run(x), x)


def test_an_artifact_that_is_damaged_is_one_warning(
    products: Path, x: Arrays, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    path = the_order().artifact(1)
    path.write_bytes(path.read_bytes()[:1000])
    follower.look()
    assert "is not a compiled model, or it is damaged" in caplog.text
    assert right(model.run(x), x)


@pytest.mark.parametrize("changed", [{"target": "x"}, {"model": 5}, {"database": "frob://x"}])
def test_an_order_that_is_damaged_ends_alone(
    changed: dict[str, object], products: Path, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    folder = the_order()
    raw = json.loads((folder.path / "order.json").read_text())
    folder.write("order.json", json.dumps(raw | changed))
    another(folder, CancelToken(), Tools(searched, load=lambda: MachineLoad(Path(), Path())))
    assert folder.state.failed and "cannot be tuned" in caplog.text
    follower.look()
    assert "stays as it is" in caplog.text and model.report is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.json", '{"seconds": "x"}'),
        ("state.json", "[" * 100_000),
        ("order.json", "[" * 100_000),
        ("order.json", '{"threads": "two"}'),
    ],
)
def test_a_file_that_cannot_be_read_ends_no_tuner(
    name: str, text: str, products: Path, follower: Follower
) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    folder = the_order()
    known = {} if name == "state.json" else json.loads((folder.path / name).read_text())
    whole = text if text.startswith("[") else json.dumps(known | json.loads(text))
    folder.write(name, whole)
    assert folder.state == OrderState()
    assert tuner._is_open(folder) == (name == "state.json")
    assert model.report is not None


def test_orders_of_processes_that_are_gone_are_cleared(products: Path, follower: Follower) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    folder = the_order()
    another(folder, CancelToken(), tools(first=0.5, second=1.0))
    (owner,) = folder.owners()
    owner.write_text(owner.read_text().replace(str(os.getpid()), "1"))
    assert not folder.owners(), "the number was given out again, to another process"
    assert not tuner._is_open(folder)
    assert not list(folder.path.glob("*.tsm"))
    assert not every(orders_folder())
    assert model.report is not None


def test_another_installation_leaves_an_order_alone(products: Path, follower: Follower) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    folder = the_order()
    assert tuner._is_open(folder)
    raw = json.loads((folder.path / "order.json").read_text())
    raw["tools"]["codegen"] = "another"
    folder.write("order.json", json.dumps(raw))
    assert not tuner._is_open(folder)
    assert folder.owners(), "nor does it delete what is another's"
    assert digest_of(model.recipe)


def test_a_round_that_is_cancelled_leaves_the_order_as_it_was(
    products: Path, follower: Follower
) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    token = CancelToken()
    token.cancel("a test")
    another(the_order(), token, tools(first=0.5, second=1.0))
    assert the_order().state.rounds == 0
    assert the_order().state.version == 0
    assert model.report.default > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_that_is_forked_follows_nothing(products: Path, follower: Follower) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    child = os.fork()
    if not child:
        os._exit(len(following._follower._followed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(follower._followed) == 1
    assert the_order().owners()
    assert model.inputs

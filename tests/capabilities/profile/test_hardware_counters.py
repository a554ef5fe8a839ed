"""Hardware counters against a kernel that is made up: what it is asked, and what it answers."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import struct
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from tilesmith.capabilities.profile import hardware_counters
from tilesmith.capabilities.profile.hardware_counters import EVENTS, Counters

FIELDS = ("type", "size", "config", "sample_period", "sample_type", "read_format")
BITS = ("disabled", "inherit", "pinned", "exclusive", "exclude_user", "exclude_kernel",
        "exclude_hv")  # fmt: skip


class Attributes(ctypes.Structure):
    """`struct perf_event_attr` up to its bits, as man 2 perf_event_open prints it."""

    _fields_ = (
        ("type", ctypes.c_uint32), ("size", ctypes.c_uint32), ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64), ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64), *((bit, ctypes.c_uint64, 1) for bit in BITS),
    )  # fmt: skip


class Kernel:
    """Gives counters that are files of what they count."""

    def __init__(self, folder: Path, answers: dict[int, tuple[int, ...]], refused: int = 0) -> None:
        self.folder, self.answers, self.refused = folder, answers, refused
        self.asked: list[tuple[Attributes, int]] = []
        self.files: list[int] = []

    def __call__(self, number: int, attributes: bytearray, thread: int) -> int:
        assert number in (298, 241) and len(attributes) == 112
        asked = Attributes.from_buffer_copy(bytes(attributes))
        self.asked.append((asked, thread))
        if self.refused:
            return -self.refused
        path = self.folder / f"{asked.config}"
        path.write_bytes(struct.pack(f"={len(self.answers[asked.config])}Q",
                                     *self.answers[asked.config]))  # fmt: skip
        self.files.append(os.open(path, os.O_RDONLY))
        return self.files[-1]


def counted(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> Counters:
    monkeypatch.setattr(hardware_counters, "_called", kernel)
    with Counters() as counters:
        pass
    for file in kernel.files:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(file)
    return counters


def test_what_the_kernel_is_asked_and_what_its_answers_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {0: (1000, 50, 50), 1: (3000, 80, 20), 2: (7, 10, 10), 3: (9, 10, 0), 5: ()}
    kernel = Kernel(tmp_path, answers)
    found = counted(monkeypatch, kernel)
    threads = {thread for _, thread in kernel.asked}
    assert threading.get_native_id() in threads
    for asked, _ in kernel.asked:
        assert (asked.type, asked.size) == (0, 112) and asked.config in EVENTS.values()
        assert asked.read_format == 1 | 2  # times enabled and running
        assert [bit for bit in BITS if getattr(asked, bit)] == ["exclude_kernel", "exclude_hv"]
    each = Counter(asked.config for asked, _ in kernel.asked)  # threads may end meanwhile
    assert found.counts == {  # one had a quarter of the time, the last two no turn at all
        "cycles": 1000 * each[0], "instructions": 12000 * each[1], "cache references": 7 * each[2],
    }  # fmt: skip
    assert not found.why


@pytest.mark.parametrize(("refused", "words"), [
    (errno.EACCES, "more rights"), (errno.ENOENT, "no such counters"), (errno.EMFILE, "open files"),
])  # fmt: skip
def test_a_refusal_is_a_clause(
    refused: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch, Kernel(tmp_path, {}, refused))
    assert not found.counts and words in found.why


def test_counters_that_never_counted_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(monkeypatch, Kernel(tmp_path, dict.fromkeys(EVENTS.values(), (0, 9, 0))))
    assert not found.counts and "lent" in found.why


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_structure_is_the_headers(tmp_path: Path) -> None:
    source, program = tmp_path / "a.c", tmp_path / "a"
    offsets = ", ".join(f"offsetof(struct perf_event_attr, {name})" for name in FIELDS)
    source.write_text(
        "#include <linux/perf_event.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        "#include <string.h>\n#include <sys/syscall.h>\n"
        "int main(void) { struct perf_event_attr a; unsigned long long bits; memset(&a, 0, "
        f"sizeof a); a.exclude_kernel = a.exclude_hv = 1; size_t at[] = {{{offsets}}};\n"
        "memcpy(&bits, (char *)&a + 40, 8);\n"
        'for (int i = 0; i < 6; i++) printf("%zu ", at[i]);\n'
        'printf("%d %llu %d %d %ld\\n", PERF_ATTR_SIZE_VER5, bits, PERF_FORMAT_TOTAL_TIME_ENABLED '
        "| PERF_FORMAT_TOTAL_TIME_RUNNING, PERF_COUNT_HW_BRANCH_MISSES, "
        "(long)SYS_perf_event_open); }\n"
    )
    if subprocess.run(["cc", source, "-o", program], capture_output=True, check=False).returncode:
        pytest.skip("no headers of the kernel")
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    numbers = [int(word) for word in said]
    assert numbers[:6] == [getattr(Attributes, name).offset for name in FIELDS]
    assert numbers[6:10] == [112, (1 << 5) | (1 << 6), 3, EVENTS["branch misses"]]
    assert numbers[10] == hardware_counters._CALLS[os.uname().machine]

"""The timed walk as AArch64 code, in an emulator: what it writes down and when."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tilesmith.codegen.native.programs.timing import object_code
from tilesmith.codegen.native.programs.walking import BEGUN, RAN
from tilesmith.search_space.hardware.target import load_target

COMPILER, EMULATOR, ROOT = "aarch64-linux-gnu-gcc", "qemu-aarch64", Path("/usr/aarch64-linux-gnu")

PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <time.h>

int64_t ticks(void);
void begin(void *, int64_t, int64_t, void *, void *, void *);

static int64_t frequency(void) { int64_t f; __asm__("mrs %0, cntfrq_el0" : "=r"(f)); return f; }

static void sleeps(void *a, int64_t t, int64_t n, void *b, void *s, void *l) {
  struct timespec wait = {0, *(long *)a};
  nanosleep(&wait, 0);
}

int main(void) {
  long waits[2] = {20000000, 60000000};
  struct { void (*call)(void *, int64_t, int64_t, void *, void *, void *); void *a; int64_t n, m; }
      rows[2] = {{sleeps, waits, 1, 0}, {sleeps, waits + 1, 1, 0}};
  struct { void *table; int64_t count; } table = {rows, 2};
  int64_t notes[8][2] = {{0}};
  _Alignas(64) int64_t local[16] = {(int64_t)notes, (int64_t)(notes + ROOM), 0};
  int64_t before = ticks();
  begin(&table, 0, 1, 0, 0, local + 8);
  int64_t after = ticks(), count = (local[0] - (int64_t)notes) / 16;
  printf("%ld %ld %ld\n", (long)count, (long)local[2], (long)(frequency() / 1000));
  for (int i = 0; i < count; i++)
    printf("%ld %ld %ld\n", (long)((notes[i][0] & ~3) - (int64_t)rows), (long)(notes[i][0] & 3),
           (long)(notes[i][1] - before));
  printf("%ld\n", (long)(after - before));
}
"""


@pytest.mark.extra
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR) and ROOT.is_dir()),
    reason=f"{COMPILER} or {EMULATOR} is not installed",
)
@pytest.mark.parametrize("room", [8, 2])
def test_notes_of_another_processor(room: int, tmp_path: Path) -> None:
    code, source, program = (tmp_path / name for name in ("timing.o", "main.c", "main"))
    code.write_bytes(object_code(load_target("aarch64")))
    source.write_text(PROGRAM)
    subprocess.run([COMPILER, "-O1", f"-DROOM={room}", source, code, "-o", program], check=True)
    said = subprocess.run([EMULATOR, "-L", ROOT, program], capture_output=True, text=True,
                          check=True).stdout.splitlines()  # fmt: skip
    head, *notes, end = ([int(word) for word in line.split()] for line in said)
    wanted = [(0, BEGUN), (0, RAN), (32, RAN)][:room]  # bytes from the first row, kinds
    assert head[:2] == [len(wanted), 3 - len(wanted)]
    assert [(row, kind) for row, kind, _ in notes] == wanted
    times = [0, *(when for _, _, when in notes), *end]
    assert times == sorted(times)
    least = [0.02, 0.06][: len(wanted) - 1]  # seconds that its calls sleep
    took = [(b - a) / (1000 * head[2]) for a, b in pairwise(times[1:-1])]
    assert all(found >= 0.95 * need for found, need in zip(took, least, strict=True))

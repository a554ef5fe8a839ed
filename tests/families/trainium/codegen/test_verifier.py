"""Broken programs are refused with a sentence that names instruction and limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.families.trainium.codegen.broken import filled, refused
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.text import to_text
from tilesmith.families.trainium.codegen.isa.verification import (
    verify_operands,
    verify_synchronisation,
)
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import CodegenError, TargetError, VerificationError


def test_sbuf_overflow_names_tile_and_size(kernel):
    kernel.sbuf((128, 40_000))
    with pytest.raises(
        CodegenError, match="needs 40000 bytes a partition of SBUF, which has 196608"
    ):
        kernel.sbuf((128, 10_000), name="big")


def test_explicit_address_outside_sbuf(kernel):
    filled(kernel, (128, 512), address=196_000)
    refused(kernel, r"instruction 0 .*ends at byte 198048 of a partition of SBUF, which has 196608")


def test_too_many_partitions(kernel):
    filled(kernel, (129, 4), address=0)
    refused(kernel, "ends at partition 129; SBUF has 128")


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        (3, 6, "out begins at partition 3; compute engines begin at multiples of 32"),
        (32, 65, "out takes 33 partitions from 32 on, where compute engines reach 32"),
        (64, 128, ""),
        (96, 128, ""),
        (32, 128, "out takes 96 partitions from 32 on, where compute engines reach 32"),
    ],
)
def test_partitions_that_engines_begin_at(kernel, start, stop, message):
    kernel.memset(kernel.sbuf((128, 4))[start:stop], 0.0)
    if message:
        refused(kernel, rf"instruction 0 \(vector memset .*: {message}")
    else:
        kernel.finish()


def test_operands_of_the_tensor_engine_begin_where_engines_do(kernel):
    data, place = filled(kernel, (128, 16)), kernel.psum((16, 16))
    kernel.matmul(place, data[16:32], data[16:32])
    refused(kernel, "in0 begins at partition 16; compute engines begin at multiples of 32")


def test_dma_begins_at_any_partition(kernel):
    kernel.load(kernel.sbuf((128, 4))[3:90], kernel.input("x", (87, 4)))
    kernel.finish()


@pytest.mark.parametrize(
    ("stationary", "moving", "message"),
    [
        ((128, 129), (128, 512), "M = 129 stationary columns exceeds the array's 128"),
        ((128, 128), (128, 513), "N = 513 moving columns exceeds 512"),
        ((64, 128), (128, 512), "stationary has K = 64 partitions and moving 128"),
    ],
)
def test_matmul_limits(kernel, stationary, moving, message):
    a, b = filled(kernel, stationary), filled(kernel, moving)
    kernel.matmul(kernel.psum((stationary[1], moving[1]), bank=0), a, b)
    refused(kernel, message)


def test_matmul_out_leaves_its_bank(kernel):
    a = filled(kernel, (128, 512))
    wide = kernel.psum((128, 1024))
    kernel.matmul(wide[:, 256:768], a[:, :128], a)
    refused(kernel, "leaves its bank of 2048 bytes")


def test_two_values_a_row_are_of_fp8_and_of_later_cores(kernel, trn2):
    with pytest.raises(CodegenError, match=r"tensor.fp8_k_max is 128, 256 are needed"):
        kernel.matmul_double_row(kernel.psum((8, 8)), *[filled(kernel, (128, 2, 8))] * 2)
    later = Kernel("broken", trn2)
    later.matmul_double_row(later.psum((8, 8)), *[filled(later, (128, 2, 8), "bfloat16")] * 2)
    refused(later, "must be of dtype float8")


def test_gpsimd_cannot_reach_psum(kernel):
    kernel.memset(kernel.psum((128, 8)), 0.0, engine="gpsimd")
    refused(kernel, "out is in PSUM, which gpsimd cannot reach")


def test_matmul_operands_must_be_in_sbuf(kernel):
    a, total = filled(kernel, (128, 128)), kernel.psum((128, 128))
    kernel.memset(total, 0.0)
    kernel.matmul(kernel.psum((128, 128)), a, total)
    refused(kernel, "in1 of the tensor engine must be in SBUF")


def test_shapes_must_fit(kernel):
    a, b = filled(kernel, (128, 64)), filled(kernel, (128, 32))
    kernel.tensor_tensor(a, a, "add", b)
    refused(kernel, "in1 has 32 elements a partition and out 64")


def test_overlapping_live_ranges(kernel):
    a = filled(kernel, (128, 64), name="first", address=0)
    filled(kernel, (128, 64), name="second", address=128)
    kernel.tensor_scalar(a, a, "add", 1.0)
    refused(kernel, "tile 'second' .* overlaps tile 'first' .*in use until instruction 2")


def test_a_rotated_buffer_is_not_used_any_more(kernel):
    places = kernel.buffers(1, (128, 64))
    old = places.next()
    kernel.memset(old, 0.0)
    kernel.memset(places.next(), 1.0)
    kernel.tensor_scalar(old, old, "add", 1.0)
    refused(kernel, "overlaps tile")


def test_reading_what_nothing_wrote(kernel):
    a = kernel.sbuf((128, 64))
    kernel.tensor_scalar(a, a, "add", 1.0)
    refused(kernel, "instruction 0 .*reads SBUF at byte 0, which nothing has written")


def synchronised(kernel):
    x, y = kernel.input("x", (128, 64)), kernel.output("y", (128, 64))
    tile = kernel.sbuf((128, 64))
    kernel.load(tile, x)
    kernel.activation(tile, "exp", tile)
    kernel.tensor_scalar(tile, tile, "add", 1.0, engine="gpsimd")
    kernel.store(y, tile)
    return with_semaphores(kernel.draft())


def test_every_missing_semaphore_is_found(kernel):
    stream = synchronised(kernel)
    verify_synchronisation(stream)
    for drop in range(len(stream.waits)):
        row = int(np.searchsorted(stream.wait_start, drop, side="right")) - 1
        start = stream.wait_start.copy()
        start[row + 1 :] -= 1
        broken = replace(stream, wait_start=start, waits=np.delete(stream.waits, drop))
        with pytest.raises(VerificationError, match=f"instruction {row} .*a semaphore is missing"):
            verify_synchronisation(broken)


def test_engines_that_exclude_each_other_hold_the_port(kernel):
    stream = synchronised(kernel)
    rows = {**stream.rows, "lock": np.zeros_like(stream.rows["lock"])}
    with pytest.raises(
        VerificationError, match=r"instruction 2 .*uses SBUF without holding its port"
    ):
        verify_synchronisation(replace(stream, rows=rows))


def test_engine_that_cannot_run_it(kernel):
    a = filled(kernel, (128, 64))
    with pytest.raises(CodegenError, match="tensor_tensor does not run on engine 'scalar'"):
        kernel.tensor_tensor(a, a, "add", a, engine="scalar")


def test_slices_outside_a_tile(kernel):
    with pytest.raises(CodegenError, match="outside axis 0 of 64 elements"):
        kernel.sbuf((128, 64), name="t")[:, 0:65]


def test_hbm_boxes_beside_each_other_do_not_wait(kernel):
    y = kernel.output("y", (128, 128))
    a = filled(kernel, (128, 64))
    kernel.store(y[:, :64], a)
    kernel.store(y[:, 64:], a)
    stream = kernel.finish()
    assert [len(i.waits) for i in stream] == [0, 1, 0]


def test_overlapping_stores_are_ordered(kernel):
    y = kernel.output("y", (128, 96))
    a = filled(kernel, (128, 64))
    kernel.store(y[:, :64], a, queue=0)
    kernel.store(y[:, 32:96], a, queue=1)
    stream = kernel.finish()
    last = list(stream)[-1]
    assert 1 in last.waits


def test_text_shows_addresses_and_semaphores(kernel):
    text = to_text(synchronised(kernel))
    assert "load sbuf[0:128, 0, 64 f32] <- x[0, 128:64 64 f32]" in text
    assert "activation exp" in text and "when dma0 >= 1" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sbuf.mib": "0"}, "sbuf.mib = 0 is out of range; allowed: 1 to 65536"),
        ({"dma.engines": "-3"}, "dma.engines = -3 is out of range"),
        ({"tensor.ghz": "fast"}, "tensor.ghz = 'fast' is not of type float"),
        ({"sbuf.colour": "1"}, "has no 'sbuf.colour'"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(TargetError, match=message):
        load_target("trn1").with_settings(settings)


def test_a_target_that_lacks_a_number():
    target = load_target("trn1")
    facts = {name: fact for name, fact in target.facts if name != "dma.start_ns"}
    from tilesmith.search_space.hardware.target import Target

    with pytest.raises(TargetError, match=r"has no 'dma\.start_ns'"):
        Core.of(Target.of("mine", "trainium", facts))


def test_what_if_changes_capacity(trn1):
    more = Core.of(load_target("trn1").with_settings({"sbuf.mib": "48"}))
    assert more.sbuf_bytes == 2 * trn1.sbuf_bytes
    kernel = Kernel("wide", more)
    kernel.sbuf((128, 90_000))
    verify_operands(kernel.draft())

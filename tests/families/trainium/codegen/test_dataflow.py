"""Each law of data flow, of tiles and of products, broken by a kernel that keeps all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.families.trainium.codegen.broken import filled, refused
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import Space
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.isa.verification import verify_dataflow
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.execution.functional import execute, execute_in
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import VerificationError

HALF = "bfloat16"


# -- what is read was written ------------------------------------------------------------------
def test_partitions_that_nothing_wrote(kernel):
    tile = kernel.sbuf((128, 64), name="half")
    kernel.memset(tile[:64], 0.0)
    kernel.memset(tile[96:], 0.0)
    kernel.tensor_scalar(tile[64:], tile[64:], "add", 1.0)
    refused(
        kernel,
        "instruction 2 .*reads SBUF at byte 0, which nothing has written on partition 64 since "
        "tile 'half' has this place",
    )


def test_bytes_that_nothing_wrote(kernel):
    tile = kernel.sbuf((128, 3, 64))
    kernel.memset(tile[:, :, 1:], 0.0)
    kernel.activation(tile[:, 2], "exp", tile[:, 2])
    refused(kernel, "instruction 1 .*reads SBUF at byte 512, which nothing has written on part")


@pytest.mark.parametrize("second", [(4, 60), (8, 60)])
def test_writes_side_by_side_count_together(kernel, second):
    tile, start = kernel.sbuf((128, 64)), second[0]
    kernel.memset(tile[:, 0:4], 0.0)
    kernel.memset(tile[:, start : start + second[1] - 4], 0.0)
    kernel.memset(tile[:, 60:64], 0.0)
    kernel.tensor_scalar(tile, tile, "add", 1.0)
    if start == 4:
        kernel.finish()
    else:
        refused(kernel, "reads SBUF at byte 16, which nothing has written on partition 0")


def test_every_operand_is_looked_at(kernel):
    data, column = filled(kernel, (128, 64)), kernel.sbuf((128, 1), name="scale")
    kernel.activation(data, "exp", data, scale=column)
    refused(kernel, "instruction 1 .*nothing has written on partition 0 since tile 'scale'")


def test_kept_elements_of_a_predicated_copy_are_read(kernel):
    data, out = filled(kernel, (128, 64)), kernel.sbuf((128, 64), name="kept")
    kernel.copy_predicated(out, data, data)
    refused(kernel, "instruction 1 .*nothing has written on partition 0 since tile 'kept'")


def test_psum_that_nothing_wrote(kernel):
    kernel.copy(kernel.sbuf((128, 64)), kernel.psum((128, 64)))
    refused(kernel, "instruction 0 .*reads PSUM at byte 0, which nothing has written on part")


def test_a_frame_is_filled_once_for_a_place(kernel):
    """Tiles that rotate over a place may count on what the first of them wrote there."""
    y, places = kernel.output("y", (3, 128, 8)), kernel.buffers(1, (128, 8))
    for i in range(3):
        tile = places.next()
        if i == 0:
            kernel.memset(tile, 0.0)
        kernel.memset(tile[:, 2:6], float(i))
        kernel.store(y[i], tile)
    kernel.finish()


def test_a_frame_that_is_filled_anew_after_another_tile_had_its_place(kernel):
    """Kernels of one program may have tiles of one name in one place, others' between them."""
    y, places = kernel.output("y", (5, 128, 8)), kernel.buffers(1, (128, 8), name="frame")
    for i in range(4):
        tile = places.next()
        if i % 2 == 0:
            kernel.memset(tile, 0.0)
        kernel.memset(tile[:, 2:6], float(i))
        kernel.store(y[i], tile)
        if i == 1:
            kernel.store(y[4], filled(kernel, (128, 8), address=tile.offset))
    kernel.finish()


def test_a_frame_of_which_another_tile_takes_what_is_read_no_more(kernel):
    """A list scheduler moves uses of one tile past those of other bytes in its place."""
    y, places = kernel.output("y", (3, 128, 8)), kernel.buffers(1, (128, 8), name="frame")
    for i in range(2):
        tile = places.next()
        if i == 0:
            kernel.memset(tile, 0.0)
        kernel.memset(tile[:, 2:6], float(i))
        kernel.store(y[i][:, i:], tile[:, i:])
        if i == 0:
            other = filled(kernel, (128, 1), address=tile.offset)
            kernel.store(y[1][:, :1], other)
    kernel.store(y[2], filled(kernel, (128, 8)))
    kernel.finish()


def test_a_frame_that_another_tile_overwrites(kernel):
    y, places = kernel.output("y", (3, 128, 8)), kernel.buffers(1, (128, 8), name="frame")
    for i in range(2):
        tile = places.next()
        if i == 0:
            kernel.memset(tile, 0.0)
        kernel.memset(tile[:, 2:6], float(i))
        kernel.store(y[i], tile)
        if i == 0:
            other = filled(kernel, (128, 4), address=tile.offset)
            kernel.store(y[2][:, :4], other)
    refused(kernel, "instruction 3 .*takes the place of tile 'frame0', which is read later")


def test_a_tile_is_not_what_another_left_in_its_place(kernel):
    tile = filled(kernel, (128, 64))
    kernel.free(tile)
    late = kernel.sbuf((128, 64), name="late")
    kernel.tensor_scalar(late, late, "add", 1.0)
    refused(kernel, "instruction 1 .*nothing has written on partition 0 since tile 'late'")


def test_an_access_outside_its_tile(kernel):
    tile = filled(kernel, (128, 64), name="small")
    far = Tile(**{**vars(tile), "offset": tile.offset + 128})
    kernel.memset(far, 0.0)
    refused(kernel, r"instruction 1 .*out leaves tile 'small' \(bytes 0 to 256 of SBUF\)")


# -- tensors in HBM ----------------------------------------------------------------------------
def test_a_spill_that_was_never_stored(kernel):
    spill, tile = kernel.temporary("spill", (256, 64)), filled(kernel, (128, 64))
    kernel.store(spill[:128], tile)
    kernel.load(tile, spill[127:255])
    refused(kernel, "instruction 2 .*reads 'spill' at byte 32768, which nothing has stored")


def test_gathered_rows_may_be_any(kernel):
    spill = kernel.temporary("spill", (256, 64))
    tile, index = filled(kernel, (128, 64)), filled(kernel, (128, 1), "int32")
    kernel.store(spill[:128], tile)
    kernel.gather(tile, spill[0].broadcast(128), index, 64, 128)
    kernel.gather(tile, spill[0].broadcast(128), index, 64, 129)
    refused(kernel, "instruction 4 .*reads 'spill' at byte 32768, which nothing has stored")


def test_an_output_that_nothing_wrote(kernel):
    kernel.output("y", (128, 64))
    refused(kernel, r"no instruction has stored element \[0, 0\] of 'y' of shape \[128, 64\]")


def test_an_output_that_was_written_in_part(kernel):
    y, tile = kernel.output("y", (300, 64)), filled(kernel, (128, 64))
    kernel.store(y[:128], tile)
    kernel.store(y[128:256], tile)
    kernel.store(y[256:][:, :63], tile[:44, :63])
    refused(kernel, r"no instruction has stored element \[256, 63\] of 'y' of shape \[300, 64\]")


def test_elements_that_are_not_promised_may_be_missing(kernel):
    y, tile = kernel.output("y", (128, 64)), filled(kernel, (128, 64))
    kernel.store(y[:, :60], tile[:, :60])
    promised = np.ones((128, 64), dtype=bool)
    promised[:, 60:] = False
    kernel.finish(lambda name: promised)
    promised[3, 62] = True
    with pytest.raises(VerificationError, match=r"stored element \[3, 62\] of 'y'"):
        kernel.finish(lambda name: promised)


def test_a_store_into_an_input(kernel):
    x, tile = kernel.input("x", (128, 64)), filled(kernel, (128, 64))
    kernel.store(x, tile)
    refused(kernel, "instruction 1 .*stores into 'x', an input")


# -- products ----------------------------------------------------------------------------------
def test_a_sum_that_nothing_began(kernel):
    data, total = filled(kernel, (128, 128)), kernel.psum((128, 128), name="total")
    kernel.matmul(total[:, :64], data, data[:, :64])
    kernel.matmul(total, data, data, accumulate=True)
    refused(
        kernel,
        r"instruction 2 .*sums into PSUM at byte 256 of partition 0 \(tile 'total'\), where noth",
    )


@pytest.mark.parametrize("begin", ["product", "number"])
def test_a_sum_that_was_begun(kernel, begin):
    data, total = filled(kernel, (128, 128)), kernel.psum((128, 128))
    if begin == "product":
        kernel.matmul(total, data, data)
    else:
        kernel.memset(total, 1.0)
    kernel.matmul(total, data, data, accumulate=True)
    kernel.finish()


@pytest.mark.parametrize("accumulate", [False, True])
def test_products_are_summed_in_fp32(kernel, accumulate):
    data, total = filled(kernel, (128, 128), HALF), kernel.psum((128, 128), HALF)
    kernel.memset(total, 0.0)
    kernel.matmul(total, data, data, accumulate=accumulate)
    refused(kernel, "instruction 2 .*out is of bfloat16; PSUM takes and sums products in float32")


def test_transposes_keep_their_dtype_in_psum(kernel):
    data = filled(kernel, (128, 128), HALF)
    kernel.transpose(kernel.psum((128, 128), HALF), data)
    kernel.finish()


@pytest.mark.parametrize(("stationary", "moving"), [("float32", HALF), (HALF, "float32")])
def test_fp32_is_not_multiplied_by_others(kernel, stationary, moving):
    a, b = filled(kernel, (128, 128), stationary), filled(kernel, (128, 128), moving)
    kernel.matmul(kernel.psum((128, 128)), a, b)
    refused(
        kernel,
        f"instruction 2 .*stationary is of {stationary} and moving of {moving}; where one is of "
        "float32 both must be",
    )


def test_narrow_dtypes_are_multiplied_at_one_speed(kernel):
    """What may be mixed costs the same, whichever stays in the array."""
    from tilesmith.families.trainium.codegen.timing.costs import costs

    kinds = (HALF, "float16", "float8_e4m3", "float8_e5m2")
    tiles = [filled(kernel, (128, 128), kind) for kind in kinds]
    for a in tiles:
        for b in tiles:
            kernel.matmul(kernel.psum((128, 64)), a, b[:, :64])
    issue = costs(kernel.finish()).issue[len(tiles) :]
    assert len(issue) == 16 and (issue == issue[0]).all()


def test_operands_of_one_memory_begin_together(kernel):
    data, out = filled(kernel, (128, 64)), kernel.sbuf((128, 64))
    kernel.tensor_tensor(out[:32], data[:32], "add", data[32:64])
    refused(
        kernel,
        "instruction 1 .*in1 begins at partition 32 and in0 at 0; what an instruction reads from "
        "one memory begins at one partition",
    )


def test_stationary_and_moving_begin_together(kernel):
    data = filled(kernel, (128, 64))
    kernel.matmul(kernel.psum((64, 64)), data[:64], data[64:])
    refused(kernel, "instruction 1 .*in1 begins at partition 64 and in0 at 0")


def test_results_may_move_to_another_quarter(kernel):
    data, total = filled(kernel, (128, 64)), kernel.psum((128, 64))
    kernel.copy(data[96:], data[:32])
    kernel.memset(total, 0.0)
    kernel.tensor_tensor(data[:32], total[32:64], "add", data[64:96])
    kernel.finish()


def test_what_is_given_and_wanted_by_bytes(kernel):
    from tilesmith.families.trainium.codegen.isa.verification import ByteSpan

    spill, tile = kernel.temporary("spill", (256, 64)), kernel.sbuf((128, 64))
    kernel.load(tile, spill[:128])
    kernel.store(spill[128:], tile)
    draft, half = kernel.draft(), 128 * 64 * 4
    verify_dataflow(draft, [ByteSpan(0, 0, half)], [ByteSpan(0, half, 2 * half)])
    with pytest.raises(VerificationError, match="reads 'spill' at byte 4, which nothing has sto"):
        verify_dataflow(draft, [ByteSpan(0, 0, 4), ByteSpan(0, 8, half)])
    late = [ByteSpan(0, half - 256, 2 * half)]
    with pytest.raises(VerificationError, match=r"stored element \[127, 0\] of 'spill'"):
        verify_dataflow(draft, [ByteSpan(0, 0, half)], late)


# -- execution ---------------------------------------------------------------------------------
def test_an_unverified_stream_is_not_executed_on_what_nothing_wrote(kernel):
    x, y = kernel.input("x", (128, 64)), kernel.output("y", (128, 64))
    tile = kernel.sbuf((128, 64))
    kernel.load(tile[:64], x[:64])
    kernel.store(y, tile)
    data = np.ones((128, 64), dtype=np.float32)
    with pytest.raises(VerificationError, match=r"instruction 1 .*nothing has written"):
        execute(kernel.draft(), {"x": data})
    memory = [data.reshape(-1).view(np.uint8), np.zeros(128 * 64 * 4, dtype=np.uint8)]
    with pytest.raises(VerificationError, match=r"instruction 1 .*nothing has written"):
        execute_in(kernel.draft(), memory)


# -- against every byte on its own -----------------------------------------------------------------
def first_unwritten(stream):
    """The first row that reads an element on chip that nothing wrote through its tile."""
    written = set()
    for instruction in stream:
        row = instruction.index
        for name, access in sorted(instruction.operands.items(), reverse=True):  # out comes last
            tile = int(stream.accesses["allocation"][stream.rows[name][row]])
            (count, _), *free = access.dims
            starts = {access.offset}
            for many, stride in free:
                starts = {s + 4 * stride * i for s in starts for i in range(many)}
            partitions = range(access.partition, access.partition + count)
            if access.space != Space.HBM:
                places = {(tile, p, byte) for p in partitions for byte in starts}
                if name != "out" and not places <= written:
                    return row
                written |= places if name == "out" else set()
    return None


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_random_accesses_are_judged_as_byte_by_byte(seed):
    rng = np.random.default_rng(seed)
    kernel = Kernel("random", Core.of(load_target("trn1")))
    tiles = [kernel.sbuf((8, 4, 6)) for _ in range(2)]
    result = kernel.sbuf((8, 24))

    def part(tile):
        (a, b), (c, d) = (sorted(rng.choice(n + 1, 2, replace=False)) for n in (4, 6))
        cut = tile[: int(rng.integers(1, 9)), a:b, c : d : int(rng.integers(1, 3))]
        return cut if rng.integers(2) else cut.permute(2, 1)

    for _ in range(int(rng.integers(4, 40))):
        kernel.memset(part(tiles[int(rng.integers(2))]), 0.0)
    for _ in range(2):
        read = part(tiles[int(rng.integers(2))])
        size = int(np.prod(read.shape[1:]))
        kernel.activation(result[: read.partitions, :size], "exp", read)
    draft = kernel.draft()
    row = first_unwritten(draft)
    if row is None:
        verify_dataflow(draft)
    else:
        with pytest.raises(VerificationError, match=rf"instruction {row} .*nothing has written"):
            verify_dataflow(draft)

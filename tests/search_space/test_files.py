"""Files that jobs write: whole or absent, checked beforehand, links and permissions kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilesmith.search_space.support.errors import InputError, JobError
from tilesmith.search_space.support.files import check_output, ending, written


def test_a_file_appears_when_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with written(path) as stream:
        stream.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_a_job_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), written(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_a_link_and_permissions_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o640)
    link.symlink_to(real)
    with written(link) as stream:
        stream.write(b"after")
    assert link.is_symlink() and real.read_text() == "after"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with written(pipe) as stream:
        stream.write(b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_only_a_file_has_an_end(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    assert ending(file) == file
    for path, kind in ((pipe, "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(OSError, match=f"it is {kind}, and a file is expected"):
            ending(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No space left"), written(Path("/dev/full")) as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match="cannot be written"), written(tmp_path):
        pass


def test_what_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("to be read")
    check_output(tmp_path / "new", source)
    check_output(source)
    for path, reason in {
        tmp_path: "it is a folder",
        tmp_path / "absent" / "out": "folder does not exist",
        source / "out": "folder does not exist",
        tmp_path / ("x" * 300): "File name too long",
        source: "give the output another name",
    }.items():
        with pytest.raises(InputError, match=reason):
            check_output(path, source)


@pytest.mark.skipif(os.geteuid() == 0, reason="an administrator may write anywhere")
def test_a_read_only_folder_is_refused_beforehand(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="read-only"):
        check_output(tmp_path / "out")

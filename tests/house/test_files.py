"""Files appear whole or not at all; what is no file is written through and stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from placer.errors import PlacerError, UsageError
from placer.io.files import parsed_json, require_folder, require_writable, write_text


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to("folder/plan.json")
    for text in ("made", "replaced"):
        write_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "folder" / "plan.json").read_text() == text


def test_a_pipe_is_written_through_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "x" * 200_000)
    reader.join(10)
    assert read == ["x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


FULL = (1, 7)  # the numbers of /dev/full, Documentation/admin-guide/devices.txt of Linux


def test_a_device_that_is_full_is_reported_and_stays_a_device(tmp_path: Path) -> None:
    device = tmp_path / "full"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(*FULL))
        device.open("wb").close()
    except PermissionError:
        pytest.skip("devices can only be made, and opened here, by root")
    with pytest.raises(PlacerError, match="No space left") as caught:
        write_text(device, "text")
    assert caught.value.exit_code == 1
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PlacerError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("name", "said"), [("missing/plan.json", "does not exist"), ("folder", "a folder"), ("file/plan.json", "no folder")]
)
def test_a_path_that_cannot_be_written_is_known_before_the_work(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=said):
        require_writable(tmp_path / name)


@pytest.mark.parametrize(("flags", "said"), [(os.ST_RDONLY, "read-only file system"), (0, "permission denied")])
def test_a_file_system_that_is_read_only_is_told_from_a_folder_of_others(
    flags: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = os.statvfs_result((*os.statvfs(tmp_path)[:8], flags, 255))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)
    with pytest.raises(UsageError, match=f"cannot write .*: {said}; name another file"):
        require_writable(tmp_path / "f")
    with pytest.raises(UsageError, match=f"cannot write into .*: {said}; name another folder"):
        require_folder(tmp_path)


def test_links_in_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match="cannot write"):
        write_text(tmp_path / "a", "text")
    assert (tmp_path / "a").is_symlink()


def test_a_folder_is_one_or_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    require_folder(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()
    for wrong in ("file", "file/below"):
        with pytest.raises(UsageError, match="name a folder"):
            require_folder(tmp_path / wrong)


@pytest.mark.parametrize("text", ["[" * 200_000, "not json", "1" * 5000])
def test_what_is_no_json_is_said_without_a_traceback(text: str) -> None:
    with pytest.raises(UsageError, match=r"^the plan: "):
        parsed_json(text, "the plan")

"""A real NFS server on this machine for the time of a test, and a mount of it: nfs-ganesha, and libnfs behind FUSE.

The kernel's own client needs `nfs` in /proc/filesystems, which kernels of containers and small machines lack. libnfs
speaks NFS from a process instead; `python nfs_machine.py PORT FOLDER` shows what it gives as a folder, read-only, until
that is unmounted. Every first read of a page goes over a TCP connection to the server.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SERVER, UNMOUNT = "ganesha.nfsd", "fusermount"
PATIENCE = 1200.0
CONFIGURATION = """\
NFS_CORE_PARAM {{ NFS_Port = {port}; Bind_addr = 127.0.0.1; Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false;
                 Enable_UDP = false; }}
NFSV4 {{ Graceless = true; RecoveryRoot = "{folder}"; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT {{ Export_Id = 1; Path = "{export}"; Pseudo = "/shards"; Access_Type = RO; Squash = No_root_squash;
         SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}
"""


def missing() -> str:
    """Why there can be no NFS server with a mount here; empty where there can."""
    absent = [name for name in (SERVER, UNMOUNT) if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    absent += [
        f"pip's {name}" for name, module in (("libnfs", "libnfs"), ("fusepy", "fuse")) if find_spec(module) is None
    ]
    if absent:
        wanted = "apt install nfs-ganesha nfs-ganesha-vfs libnfs-dev libfuse2 fuse, pip install libnfs fusepy"
        return f"no NFS server with a client outside the kernel: {', '.join(absent)} not installed ({wanted})"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no NFS mount: /dev/fuse is not there or not open to this user"
    return "" if os.geteuid() == 0 else "no NFS server: nfs-ganesha opens files by handle, which only root may"


@contextmanager
def served(export: Path, folder: Path) -> Iterator[Path]:
    """`export` by a server of its own, mounted below `folder`. Raises RuntimeError with the server's log."""
    port, mount = _free_port(), folder / "mount"
    mount.mkdir()
    configuration, log = folder / "ganesha.conf", folder / "ganesha.log"
    configuration.write_text(CONFIGURATION.format(port=port, export=export, folder=folder))
    server = [shutil.which(SERVER, path=f"{os.environ['PATH']}:/usr/sbin") or SERVER, "-F", "-f", str(configuration)]
    with (folder / "out").open("w") as out:
        running = [subprocess.Popen([*server, "-p", str(folder / "pid"), "-L", str(log)], stdout=out, stderr=out)]
        try:
            _wait(lambda: _answers(port), log, running[0])
            running.append(subprocess.Popen([sys.executable, __file__, str(port), str(mount)], stdout=out, stderr=out))
            _wait(lambda: os.path.ismount(mount), folder / "out", running[1])
            yield mount
        finally:
            subprocess.run([UNMOUNT, "-u", "-z", str(mount)], check=False, capture_output=True)
            for process in reversed(running):
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _wait(until: Callable[[], bool], log: Path, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + PATIENCE
    while not until():
        if process.poll() is not None or time.monotonic() > ends:
            told = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
            raise RuntimeError(f"{process.args!r} does not serve: {told}")
        time.sleep(0.1)


def _mount(port: int, folder: str) -> None:
    """Show the server's files at `folder` until it is unmounted."""
    import fuse
    import libnfs

    class Files(fuse.Operations):  # type: ignore[misc]
        """What FUSE asks, by libnfs; read-only."""

        def __init__(self) -> None:
            self.nfs = libnfs.NFS(f"nfs://127.0.0.1/shards?version=4&nfsport={port}")

        def getattr(self, path: str, fh: int | None = None) -> dict[str, float]:
            del fh
            found = self.nfs.lstat(path)  # raises what FUSE passes on
            seconds = found["mtime"]["sec"] + 1e-9 * found["mtime"]["nsec"]
            same = {f"st_{name}": found[name] for name in ("mode", "size", "nlink", "uid", "gid")}
            return {**same, "st_mtime": seconds}

        def readdir(self, path: str, fh: int) -> list[str]:
            del fh
            return [".", "..", *(name for name in self.nfs.listdir(path) if name not in (".", ".."))]

        def open(self, path: str, flags: int) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise fuse.FuseOSError(errno.EROFS)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            """Opened anew each time: over NFS 4 libnfs 4 fails to open more beside several open files (ERANGE)."""
            del fh
            file = self.nfs.open(path, "rb")
            try:
                file.seek(offset, os.SEEK_SET)
                return bytes(file.read(size))
            finally:
                file.close()

    assert stat.S_ISDIR(os.stat(folder).st_mode)
    fuse.FUSE(Files(), folder, foreground=True, nothreads=True, ro=True, fsname="nfs", subtype="libnfs")


if __name__ == "__main__":
    _mount(int(sys.argv[1]), sys.argv[2])

"""Small file systems that can be filled up."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    """A file system of its own at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, *, leave_mib: int = 0) -> Path:
    """Use up all space of a disk, or all but so much; the file to delete."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    size = free.f_bavail * free.f_frsize - leave_mib * 2**20
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    if not leave_mib:
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
    return ballast

"""Real disks with real faults, for who may mount them; tests are skipped for who may not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)
"""EXT4_GOING_FLAGS_NOLOGFLUSH: what was not fsynced is gone, as after a power cut."""


CAP_SYS_ADMIN = 1 << 21
"""In /proc/self/status, as capabilities(7) has it; root of a container may be without."""


def run(*command: str) -> None:
    """Skips who may not mount; what fails for others is an error."""
    if sys.platform != "linux":
        pytest.skip("disks of our own are for Linux only")
    status = Path("/proc/self/status").read_text("ascii")
    if not int(re.findall(r"^CapEff:\s*(\w+)", status, re.MULTILINE)[0], 16) & CAP_SYS_ADMIN:
        pytest.skip("who mounts disks needs CAP_SYS_ADMIN")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """`mount OPTIONS folder`, undone at the end."""
    folder.mkdir(exist_ok=True)
    run("mount", *options, str(folder))
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def small_disk(folder: Path, size: str = "1m") -> contextlib.AbstractContextManager[Path]:
    """A tmpfs that is soon full."""
    return mounted(folder, "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs")


def fill(path: Path) -> None:
    """Whatever space the disk has left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def ext4_image(path: Path) -> Path:
    """16 MiB, formatted. Skips where nothing can be mounted from a file."""
    if not Path("/dev/loop-control").exists():
        pytest.skip("no loop devices, which root of a container may lack")
    with path.open("wb") as file:
        file.truncate(16 << 20)
    run("mkfs.ext4", "-q", str(path))
    return path


def cut_power(folder: Path) -> None:
    """Of the ext4 mounted there: every later access fails with EIO."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
    finally:
        os.close(fd)

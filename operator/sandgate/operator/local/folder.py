"""The `--out` folder of a local run: its paths, its owner, and a lock that lets only one run use it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandgate.contract.attach import ATTACH, JOB, LOCK, SECRET, TRAINERS
from sandgate.contract.errors import Conflict
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.names import group_name, is_derived
from sandgate.operator.local.files import left_over, whole
from sandgate.operator.local.files import replace as replace
from sandgate.operator.local.resuming import MADE, admit, fits
from sandgate.operator.local.trees import clear_away
from sandgate.sandbox.own import OwnFile

SECRET_BYTES = 32
"""Signs the keys of this folder's sessions; as long as the HMAC it feeds."""
LOCK_TRIES, LOCK_PAUSE_S = 20, 0.01
"""A trainer that looks whether a run is here holds its lock for some microseconds."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Paths below `--out`."""

    root: Path

    @property
    def trajectories(self) -> Path:
        """The merged result of a job that is over."""
        return self.root / "trajectories.parquet"

    @property
    def logs(self) -> Path:
        """`<session>.log`, `<session>.verifier.log`, `gateway-<n>.log`, `engine.log`."""
        return self.root / "logs"

    @property
    def secret(self) -> Path:
        """Hex, mode 0600."""
        return self.root / SECRET

    @property
    def attach(self) -> Path:
        """What the run says to trainers."""
        return self.root / ATTACH

    @property
    def versions(self) -> Path:
        """How many policy versions trainers have published (`local.versions`)."""
        return self.root / "versions.json"

    @property
    def trainers(self) -> Path:
        """A file of each trainer that is attached."""
        return self.root / TRAINERS

    def group(self, job: str, uid: str) -> Path:
        """Trajectories of one group; there once they are durable."""
        return self.root / "groups" / f"{group_name(job, uid)}.parquet"

    def journal(self, index: int) -> Path:
        """A gateway's truth."""
        return self.root / f"gateway-{index}.sqlite"

    def journals(self) -> int:
        """How many gateways earlier runs had."""
        index = 0
        while self.journal(index).exists():
            index += 1
        return index

    def config(self, index: int) -> Path:
        """A gateway's settings, written anew by each run."""
        return self.root / "run" / f"gateway-{index}.json"

    def scratch(self, name: str) -> Path:
        """A session's own folder: home, task, result. Gone when the session is."""
        return self.root / "run" / name

    def tidy(self) -> None:
        """Remove what is of use only while something runs. A link that somebody put there leads to his own."""
        if not (run := self.root / "run").is_symlink():
            clear_away(run)

    def clear_parts(self, job: str) -> None:
        """Remove what runs of `job` were writing when they were killed: nobody goes on with it. Only for who holds the
        folder's lock."""
        own = {self.trajectories.name, self.versions.name, JOB, SECRET, ATTACH, MADE}
        # The user's own --out may be a link.
        parts = [one for one in left_over(self.root.resolve()) if whole(one).name in own]
        parts += [one for one in left_over(self.root / "groups") if is_group_file(job, whole(one))]
        for path in parts:
            clear_away(path)

    def job_file(self) -> Path:
        """The manifest, as it was understood."""
        return self.root / JOB


def is_group_file(job: str, path: Path) -> bool:
    """Has the name of a file with the trajectories of a group of that job."""
    return path.suffix == ".parquet" and is_derived(job, f"{path.stem}-0-0")


class Claim:
    """Exclusive use of a folder, for as long as this process lives or until `release`."""

    def __init__(self, root: Path, job: RolloutJob, base: Path = Path(), tasks: Sequence[Task] = ()) -> None:
        """Makes what is missing. `base`: what relative paths of the manifest begin at; `tasks`: none where others bring
        them. Raises Conflict if another run uses it, or it holds another job, or rows that this one would not make."""
        root.mkdir(parents=True, exist_ok=True)
        self.folder = Folder(root)
        self._locks = take(root)
        try:
            self.recipe = admit(root, job, base, tasks)
            self._prepare(job)
        except BaseException:
            self.release()
            raise

    def _prepare(self, job: RolloutJob) -> None:
        folder = self.folder
        folder.tidy()
        folder.clear_parts(job.metadata.name)
        folder.attach.unlink(missing_ok=True)
        for path in (folder.logs, folder.root / "groups", folder.root / "run", folder.trainers):
            path.mkdir(exist_ok=True)
        (folder.root / "run").chmod(0o700)
        folder.trainers.chmod(0o700)
        replace(folder.job_file(), json.dumps(encode(job), ensure_ascii=False, indent=1))
        if not folder.secret.exists():
            replace(folder.secret, secrets.token_hex(SECRET_BYTES))

    def release(self) -> None:
        """Let others use it."""
        for lock in self._locks:
            lock.release()


def claimable(root: Path, job: RolloutJob, base: Path, tasks: Sequence[Task] = ()) -> None:
    """Would `Claim` be given the folder now? Raises Conflict as it does; makes and changes nothing."""
    if in_use(root):
        raise used(root)
    fits(root, job, base, tasks)


def in_use(root: Path) -> bool:
    """A run holds the folder. The look takes its lock for some microseconds, which a run that starts waits out."""
    for path in (root / LOCK, root):
        try:
            look = OwnFile(path, os.O_RDONLY, briefly=True)
        except OSError:  # nobody ever had it
            continue
        try:
            if not _locked(look):
                return True
        finally:
            look.release()
    return False


def take(root: Path) -> tuple[OwnFile, ...]:
    """Locks that are held until they are released: of the lock file, at which trainers look, and of the folder itself,
    which nobody removes by accident. Raises Conflict if another run has one of them."""
    mine: list[OwnFile] = []
    for path, flags in ((root / LOCK, os.O_RDWR | os.O_CREAT), (root, os.O_RDONLY | os.O_DIRECTORY)):
        mine.append(OwnFile(path, flags))
        if not _locked(mine[-1]):
            for lock in mine:
                lock.release()
            raise used(root)
    with suppress(OSError):  # a full disk: it is said for people alone
        os.ftruncate(mine[0].fileno(), 0)
        os.pwrite(mine[0].fileno(), b"%d\n" % os.getpid(), 0)
    return tuple(mine)


def used(root: Path) -> Conflict:
    """What to say of a folder that another run holds: with its process, if its lock file tells."""
    try:
        process = (root / LOCK).read_text("ascii").strip()
    except (OSError, ValueError):
        process = ""
    which = f" (process {process})" if process.isdecimal() else ""
    return Conflict(f"{root}: another run uses this folder{which}")


def _locked(file: OwnFile) -> bool:
    """False if another has it. A file system without locks for folders (NFS) has none that could be held."""
    for tries_left in reversed(range(LOCK_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries_left:
                time.sleep(LOCK_PAUSE_S)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
                raise
            return True
        else:
            return True
    return False

"""Images without a registry: built with buildah, kept as archives, imported into nodes, `imagePullPolicy: Never`."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.harness.cache import Part, cache, hash_of, locked
from tests.cluster.harness.packages import install_packages
from tests.cluster.harness.programs import PARTS, binary

PAUSE = "localhost/sandgate-test/pause:1"
COREDNS = "localhost/sandgate-test/coredns:1"
PYTHON = "localhost/sandgate-test/py:1"
"""Debian bookworm with python3 (3.11), venv, pip and curl: the base of every image under test."""
DEBIAN = "bookworm"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates,curl,iproute2"
UNNEEDED = (
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
NOBODY = "65532"
ARCHIVE = "image.tar"
IMAGES_MAX = 800
"""In buildah's store, unnamed ones included. A gateway's build makes twelve; a hundred were 4 GB."""
FAST = ("--compression-format=zstd", "--compression-level=1")
"""An archive is read three times and kept for hours: gzip takes a third more CPU to write it."""


def buildah(*args: str, cwd: Path | None = None) -> str:
    """With a store of its own. Raises CalledProcessError; what it said is on stderr."""
    store = cache() / "containers"
    where = ["--root", str(store / "root"), "--runroot", str(store / "run"), "--storage-driver", "overlay"]
    command = ["buildah", *where, *args]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd).stdout.strip()


def prune() -> None:
    """Forget earlier states when there are many, and with them the layers of first stages, which later builds begin
    from. Rarely: it takes minutes, and all that pip installs is then installed anew, two minutes for a gateway."""
    if len(buildah("images", "--all", "--quiet").splitlines()) > IMAGES_MAX:
        buildah("rmi", "--prune")


def archive(image: str, folder: Path) -> None:
    """Write an image of the store to a file that `ctr images import` reads."""
    buildah("push", "-q", *FAST, image, f"oci-archive:{folder / ARCHIVE}:{image}")


def make_from_program(image: str, program: str, folder: Path) -> None:
    """An image that holds a static program and nothing else."""
    install_packages()
    container = buildah("from", "scratch")
    buildah("copy", "-q", container, str(binary(program)), "/")
    buildah("config", "--entrypoint", f'["/{program}"]', "--cmd", "", "--user", NOBODY, container)
    buildah("commit", "-q", "--rm", container, image)
    archive(image, folder)


def make_python(folder: Path) -> None:
    """From the Debian mirror that this machine's apt uses."""
    install_packages()
    root = folder / "root"
    options = ["--variant=minbase", f"--include={PACKAGES}"]
    subprocess.run(["debootstrap", *options, DEBIAN, str(root), *mirror()], check=True, stdout=sys.stderr)
    for name in UNNEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    container = buildah("from", "scratch")
    buildah("add", "-q", container, str(root), "/")
    path = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    buildah("config", "--env", path, "--cmd", '["python3"]', container)
    buildah("commit", "-q", "--rm", container, PYTHON)
    archive(PYTHON, folder)
    shutil.rmtree(root)


def mirror() -> list[str]:
    """Where apt takes this release from; empty: debootstrap's own choice."""
    asked = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith(f"{DEBIAN} ")][:1]


PAUSE_IMAGE = Part(
    "image-pause",
    lambda folder: make_from_program(PAUSE, "pause", folder),
    pins=(PAUSE,),
    needs=(PARTS["pause"],),
)
COREDNS_IMAGE = Part(
    "image-coredns",
    lambda folder: make_from_program(COREDNS, "coredns", folder),
    pins=(COREDNS,),
    needs=(PARTS["coredns"],),
)
PYTHON_IMAGE = Part("image-py", make_python, pins=(PYTHON, DEBIAN, PACKAGES))


def image(part: Part) -> Path:
    """The archive of one of the above, made when it is missing."""
    return part.ensure() / ARCHIVE


def build_image(
    dockerfile: Path,
    context: Path,
    tag: str,
    *,
    paths: Sequence[str] = (".",),
    args: Mapping[str, str] | None = None,
    base: Part = PYTHON_IMAGE,
) -> Path:
    """Build `tag` and give its archive: `cluster.load_image(build_image(...))`.

    The context is what git knows or would add of `paths` below `context`, so neither .git nor a virtual environment
    gets in. The Dockerfile says `ARG BASE` and `FROM $BASE`; `args` are further build arguments. `RUN pip install`
    works as pip works on this machine (mirror, certificates). The same content is built once. Raises
    CalledProcessError; what the build said is on stderr.
    """
    names = tracked(context, paths)
    found = archive_file(dockerfile, context, tag, names, args, base)
    folder = found.parent
    if found.exists():
        return found
    archive_of_base = image(base)
    with locked(cache() / "images.lock"), tempfile.TemporaryDirectory(prefix="sandgate-image-") as name:
        if not found.exists():
            work = Path(name)
            stage(context, names, work / "context")
            shutil.rmtree(folder, ignore_errors=True)  # earlier states of the same image
            folder.mkdir(parents=True)
            start = buildah("pull", "-q", f"oci-archive:{archive_of_base}")
            given = [f"--build-arg={key}={value}" for key, value in {"BASE": start, **(args or {})}.items()]
            options = [
                "-q",
                "--isolation=chroot",
                "--network=host",
                "--pull-never",
                "--layers",
                *given,
                *pip_mounts(work),
            ]
            buildah("bud", *options, "-t", tag, "-f", str(dockerfile), str(work / "context"))
            buildah("push", "-q", *FAST, tag, f"oci-archive:{found}.part:{tag}")
            found.with_name(f"{found.name}.part").rename(found)
            prune()
    return found


def archive_file(
    dockerfile: Path,
    context: Path,
    tag: str,
    names: Sequence[str],
    args: Mapping[str, str] | None = None,
    base: Part = PYTHON_IMAGE,
) -> Path:
    """Where `build_image` puts, or has put, the archive; `names` are those that are `tracked`. Clones with the same
    content share it."""
    digest = hashlib.sha256(hash_of([dockerfile], dockerfile.parent))
    digest.update(hash_of((context / name for name in names), context))
    digest.update(json.dumps([tag, sorted((args or {}).items()), base.key()]).encode())
    return cache() / f"image-{tag.replace('/', '_').replace(':', '_')}" / f"{digest.hexdigest()[:12]}.tar"


def tracked(context: Path, paths: Sequence[str]) -> list[str]:
    """What git has or would add, without what was deleted."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
        "--",
        *paths,
    ]
    names = subprocess.run(command, check=True, capture_output=True, text=True, cwd=context).stdout.split(
        "\0"
    )
    return sorted(name for name in names if name and (context / name).is_file())


def stage(context: Path, names: Sequence[str], target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(context / name, target / name)


def pip_mounts(work: Path) -> list[str]:
    """This machine's pip settings (files and environment) as one file for the build, with what they point to.

    Mounted, so they never become part of an image.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    )
    settings = {}
    for line in sorted(
        listed.stdout.splitlines(), reverse=True
    ):  # `:env:` is sorted before `global` and wins
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    (work / "pip.conf").write_text(f"[global]\n{text}")
    mounts = [f"{work / 'pip.conf'}:/etc/pip.conf:ro"]
    for name in ("cert", "find-links"):
        path = settings.get(name, "")
        if path.startswith("/") and os.path.exists(path):
            mounts.append(f"{path}:{path}:ro")
    return [option for mount in mounts for option in ("-v", mount)]

"""Our images, built from the working copy on the test world's Debian: `cluster.load_image(build("gateway"))`."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness.images import archive_file, build_image, tracked

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("contract", "gateway", "operator", "sandbox", "trainer")
WHEEL = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", ".dockerignore", *ROOMS)
IMAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "operator": ("images/operator.Dockerfile", WHEEL),
    "gateway": ("images/gateway.Dockerfile", WHEEL),
    "fetcher": ("images/fetcher.Dockerfile", ("sandbox/sandgate/sandbox/entry.py", ".dockerignore")),
    "shop": ("examples/shop/Dockerfile", ("constraints.txt", "examples/shop", ".dockerignore")),
}
"""Name -> its Dockerfile, and what of the repository it is built from."""


def tag(name: str) -> str:
    """As `image: sandgate-gateway:latest` is understood by a node."""
    return f"docker.io/library/sandgate-{name}:latest"


def build(name: str, image: str = "") -> Path:
    """The image's archive, named `image` or by its `tag`. Quick when nothing of what it is built from has changed."""
    dockerfile, paths = IMAGES[name]
    return build_image(ROOT / dockerfile, ROOT, image or tag(name), paths=paths)


def built(name: str) -> bool:
    """Whether its archive is there for the working copy as it is."""
    dockerfile, paths = IMAGES[name]
    return archive_file(ROOT / dockerfile, ROOT, tag(name), tracked(ROOT, paths)).exists()

"""images/build.sh for several platforms: a list in a real registry, with labels, and a bill of what each image holds.

The base is made here and is almost empty, for both platforms, and the image is the one whose build runs nothing: so no
machine of the other platform is needed, nor an emulator.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.images.ours import ROOT
from tests.support.registry import registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PLATFORMS = ("amd64", "arm64")
INDEX = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
IMAGE = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
SOURCE = "https://git.example.com/team/sandgate"


@dataclass(frozen=True)
class Shop:
    """A registry, and a builder whose store is its own."""

    address: str
    env: dict[str, str]
    home: Path

    def run(self, *command: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=False, timeout=200, cwd=ROOT
        )
        assert (done.returncode != 0) is fails, done.stderr
        return done

    def buildah(self, *words: str) -> str:
        return self.run("buildah", *words).stdout.strip()

    def get(self, path: str, accept: str) -> Any:
        with urlopen(
            Request(f"http://{self.address}/v2/{path}", headers={"Accept": accept}), timeout=30
        ) as answer:
            return json.load(answer)

    def base(self) -> str:
        """A list of two platforms, by digest."""
        parts = []
        for arch in PLATFORMS:
            root = self.home / arch
            (root / "var/lib/dpkg").mkdir(parents=True)
            package = f"Package: libc6\nStatus: install ok installed\nArchitecture: {arch}\nVersion: 2.36-9\n"
            (root / "var/lib/dpkg/status").write_text(package)
            container = self.buildah("from", "scratch")
            self.buildah("copy", "-q", container, str(root), "/")
            self.buildah("config", "--os", "linux", "--arch", arch, container)
            parts.append(f"{self.address}/base:{arch}")
            self.buildah("commit", "-q", "--rm", container, parts[-1])
        self.buildah("manifest", "create", "base-list")
        for part in parts:
            self.buildah("manifest", "add", "base-list", f"containers-storage:{part}")
        self.buildah(
            "manifest",
            "push",
            "-q",
            "--all",
            "--tls-verify=false",
            "base-list",
            f"docker://{self.address}/base:1",
        )
        asked = Request(f"http://{self.address}/v2/base/manifests/1", headers={"Accept": INDEX})
        with urlopen(asked, timeout=30) as answer:
            return f"{self.address}/base@{answer.headers['Docker-Content-Digest']}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        pytest.skip("images are built by root here, with buildah")
    home = tmp_path_factory.mktemp("platforms")
    (home / "data").mkdir()
    with registry(home) as address:
        (home / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{home}/root"\nrunroot = "{home}/run"\n'
        )
        own = {
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "BUILD_ARGS": "--isolation chroot --network host -q --tls-verify=false",
            "PUSH_ARGS": "-q --tls-verify=false",
            "SBOM_PYTHON": sys.executable,
        }
        yield Shop(address, os.environ | own, home)


@pytest.fixture(scope="module")
def base(shop: Shop) -> str:
    return shop.base()


@pytest.fixture(scope="module")
def built(shop: Shop, base: str) -> str:
    """What the script said last: the image."""
    options = f"--registry {shop.address}/team --tag 1 --base {base} --source {SOURCE} --sbom {shop.home}/sbom --push"
    done = shop.run("images/build.sh", *options.split(), "--platform", "linux/amd64,linux/arm64", "fetcher")
    return done.stdout.splitlines()[-1]


def test_the_registry_has_a_list_with_an_image_for_each_platform(shop: Shop, built: str) -> None:
    assert built == f"{shop.address}/team/sandgate-fetcher:1"
    listed = shop.get("team/sandgate-fetcher/manifests/1", INDEX)["manifests"]
    assert {(one["platform"]["os"], one["platform"]["architecture"]) for one in listed} == {
        ("linux", arch) for arch in PLATFORMS
    }
    assert len({one["digest"] for one in listed}) == len(PLATFORMS)


def test_each_image_says_where_it_is_from(shop: Shop, base: str, built: str) -> None:
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    for one in shop.get("team/sandgate-fetcher/manifests/1", INDEX)["manifests"]:
        manifest = shop.get(f"team/sandgate-fetcher/manifests/{one['digest']}", IMAGE)
        config = shop.get(f"team/sandgate-fetcher/blobs/{manifest['config']['digest']}", "*/*")
        assert config["architecture"] == one["platform"]["architecture"]
        said = {
            key.removeprefix("org.opencontainers.image."): value
            for key, value in config["config"]["Labels"].items()
        }
        name, _, digest = base.partition("@")
        assert said.pop("revision").removesuffix("-modified") == revision
        assert (
            said.items()
            >= {
                "title": "sandgate-fetcher",
                "version": "1",
                "licenses": "Apache-2.0",
                "source": SOURCE,
                "base.name": name,
                "base.digest": digest,
            }.items()
        )


@pytest.mark.parametrize("arch", PLATFORMS)
def test_each_image_has_a_bill_of_what_it_holds(shop: Shop, built: str, arch: str) -> None:
    text = (shop.home / "sbom" / f"sandgate-fetcher-{arch}.cdx.json").read_text("utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    said = json.loads(text)
    assert (
        said["metadata"]["component"] | {"name": "sandgate-fetcher", "version": "1"}
        == said["metadata"]["component"]
    )
    assert [one["purl"] for one in said["components"]] == [
        f"pkg:deb/debian/libc6@2.36-9?arch={arch}&distro=debian"
    ]


def test_a_list_can_be_built_again_and_without_a_registry(shop: Shop, base: str, built: str) -> None:
    command = f"images/build.sh --tag 2 --base {base} --platform linux/amd64,linux/arm64 fetcher".split()
    for _ in range(2):
        assert shop.run(*command).stdout.splitlines()[-1] == "sandgate-fetcher:2"
    listed = json.loads(shop.buildah("manifest", "inspect", "sandgate-fetcher:2"))["manifests"]
    assert sorted(one["platform"]["architecture"] for one in listed) == sorted(PLATFORMS)


@pytest.mark.parametrize("platform", ["arm64", "linux/arm64 --push", "windows/amd64", "linux/"])
def test_a_platform_that_is_none_is_refused(platform: str) -> None:
    command = [str(ROOT / "images" / "build.sh"), "--platform", platform, "fetcher"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "must be as linux/arm64" in done.stderr) == (2, True)

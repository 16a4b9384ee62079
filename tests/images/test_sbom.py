"""The bill of what an image holds: from texts as images have them; judged by the schema."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts import sbom

AT = datetime(2026, 1, 2, tzinfo=UTC)
DPKG = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc
Version: 2.36-9+deb12u10
Description: GNU C Library
 It has lines that begin with a blank.

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Source: gcc-12 (12.2.0-14)
Version: 12.2.0-14+deb12u1
"""
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
SITE = "opt/sandgate/lib/python3.11/site-packages"
FILES: Mapping[str, str] = {
    "var/lib/dpkg/status": DPKG,
    "var/lib/dpkg/status-old": "Package: old\nStatus: install ok installed\nVersion: 1\n",
    "etc/os-release": OS_RELEASE,
    f"{SITE}/orjson-3.13.0.dist-info/METADATA": "Name: orjson\nVersion: 3.13.0\nLicense-Expression: MPL-2.0 AND MIT\n",
    f"{SITE}/jaraco.text-4.0.dist-info/METADATA": "Name: jaraco.text\nVersion: 4.0\nLicense: MIT\n\nName: not this\n",
    f"{SITE}/long-1.dist-info/METADATA": f"Name: long\nVersion: 1\nLicense: {'word ' * 100}\n",
    f"{SITE}/classy-1.dist-info/METADATA": (
        "Name: classy\nVersion: 1\nClassifier: Topic :: X\nClassifier: License :: OSI Approved :: MIT License\n"
    ),
    f"{SITE}/orjson/METADATA": "Name: not a distribution\nVersion: 1\n",
    "usr/lib/python3/dist-packages/six-1.dist-info/METADATA": "Name: six\nVersion: 1\n",
    "usr/local/include/python3.11/patchlevel.h": '#define PY_VERSION              "3.11.9"\n',
}
PURLS = [
    "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12&upstream=glibc",
    "pkg:deb/debian/libgcc-s1@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12&upstream=gcc-12",
    "pkg:generic/python@3.11.9",
    "pkg:pypi/classy@1",
    "pkg:pypi/jaraco-text@4.0",
    "pkg:pypi/long@1",
    "pkg:pypi/orjson@3.13.0",
]


def tar(files: Mapping[str, str]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("./etc/mtab")
        link.type, link.linkname = tarfile.SYMTYPE, "/proc/mounts"
        archive.addfile(link)
    out.seek(0)
    return out


def bill(files: Mapping[str, str]) -> Any:
    return json.loads(sbom.bill("sandgate-gateway", "0.1.0", sbom.read(tar(files)), AT))


def test_it_has_debians_packages_pythons_distributions_and_python_and_each_once() -> None:
    twice = {
        **FILES,
        f"opt/room/{SITE}/orjson-3.13.0.dist-info/METADATA": FILES[
            f"{SITE}/orjson-3.13.0.dist-info/METADATA"
        ],
    }
    assert sorted(one["purl"] for one in bill(twice)["components"]) == PURLS


def test_it_agrees_with_the_schema_and_names_the_image() -> None:
    said = bill(FILES)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(said)) is None
    assert said["metadata"]["component"].items() >= {
        "name": "sandgate-gateway", "version": "0.1.0", "type": "container",
    }.items()  # fmt: skip
    (all_of_it,) = [one["dependsOn"] for one in said["dependencies"] if one["ref"] == "sandgate-gateway"]
    assert sorted(all_of_it) == PURLS


def test_licenses_are_expressions_names_or_nothing() -> None:
    said = {one["name"]: one.get("licenses") for one in bill(FILES)["components"]}
    assert said["orjson"] == [{"expression": "MPL-2.0 AND MIT"}]
    assert said["jaraco.text"] == [{"license": {"id": "MIT"}}]
    assert said["classy"] == [{"license": {"name": "MIT License"}}]
    assert said["long"] is None, "the text of a license is not its name"


def test_packages_of_distroless_images_are_found() -> None:
    files = {
        "var/lib/dpkg/status.d/base": "Package: base-files\nVersion: 12\nArchitecture: arm64\n",
        "var/lib/dpkg/status.d/base.md5sums": "d41d8cd98f00b204e9800998ecf8427e  etc/x\n",
        "usr/lib/os-release": OS_RELEASE,
    }
    assert [one["purl"] for one in bill(files)["components"]] == [
        "pkg:deb/debian/base-files@12?arch=arm64&distro=debian-12"
    ]


def test_the_same_image_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767312000")
    for name in ("one", "two"):
        out = str(tmp_path / "bills" / name)
        assert sbom.main(["--name=x", "--version=1", f"--out={out}"], tar(FILES)) == 0
    first, second = (tmp_path / "bills" / name for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("stream", "said"),
    [(tar({"bin/sh": "x"}), "is it the root of an image"), (io.BytesIO(b"no tar"), "error:")],
    ids=["an image that says nothing of itself", "no tar"],
)
def test_what_is_no_image_is_refused(
    stream: io.BytesIO, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    assert sbom.main(["--name=x", "--version=1", f"--out={out}"], stream) == 1
    assert said in capsys.readouterr().err
    assert not out.exists()

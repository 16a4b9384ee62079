"""Say what an image holds: CycloneDX (JSON) of its Debian packages, its Python distributions and its Python.

    tar -C ROOT -c . | python scripts/sbom.py --name sandgate-gateway --version 0.1.0 --out gateway.cdx.json

Reads the image's file system as a tar stream, so that nothing of it runs and none of it is unpacked: another machine's
architecture is read as well as this one's. `images/build.sh --sbom FOLDER` calls it. What it wrote agrees with the
schema, or it ends with 1. SOURCE_DATE_EPOCH is the time that it says; the same image then gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import IO

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

STATUS = re.compile(r"var/lib/dpkg/(status|status\.d/[^/]+)")
METADATA = re.compile(r"(?:.*/)?[^/]+\.(?:dist-info/METADATA|egg-info/PKG-INFO)")
DEBIANS_PYTHON = "/dist-packages/"
"""What lies there belongs to a Debian package, which is listed itself."""
PATCHLEVEL = re.compile(r"(?:.*/)?include/python3\.\d+/patchlevel\.h")
"""Of a Python that is no Debian package, as that of the `python` images."""
OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
LICENSE_CHARS_MAX = 120
"""A longer `License` is the text of one, not its name."""
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.sandgate.dev")


@dataclass
class Found:
    """What of an image says what it holds; texts as they are in it."""

    dpkg: list[str] = field(default_factory=list)
    python: list[str] = field(default_factory=list)
    patchlevel: list[str] = field(default_factory=list)
    os_release: str = ""


def read(stream: IO[bytes]) -> Found:
    """From a tar stream of the image's root."""
    found = Found()
    with tarfile.open(fileobj=stream, mode="r|*") as tar:
        for entry in tar:
            name = entry.name.removeprefix("./").lstrip("/")
            if not entry.isfile() or (file := tar.extractfile(entry)) is None:
                continue
            if name in OS_RELEASE:
                found.os_release = file.read().decode("utf-8", "replace")
            elif STATUS.fullmatch(name) and not name.endswith(".md5sums"):
                found.dpkg.append(file.read().decode("utf-8", "replace"))
            elif METADATA.fullmatch(name) and DEBIANS_PYTHON not in f"/{name}":
                found.python.append(file.read().decode("utf-8", "replace"))
            elif PATCHLEVEL.fullmatch(name) and name.startswith("usr/local/"):
                found.patchlevel.append(file.read().decode("utf-8", "replace"))
    return found


def components(found: Found) -> Iterator[Component]:
    """Each once, whatever how many copies of it there are."""
    seen: set[str] = set()
    for one in (
        *debian(found.dpkg, found.os_release),
        *distributions(found.python),
        *pythons(found.patchlevel),
    ):
        if str(one.purl) not in seen:
            seen.add(str(one.purl))
            yield one


def debian(texts: Iterable[str], os_release: str) -> Iterator[Component]:
    """Packages that are installed; `upstream` is the source package, by which Debian tells of holes."""
    said = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    distro = said.get("ID", "debian")
    release = f"{distro}-{said['VERSION_ID']}" if said.get("VERSION_ID") else distro
    for paragraph in "\n\n".join(texts).split("\n\n"):
        package = HeaderParser().parsestr(paragraph.strip())
        name, version = package.get("Package", ""), package.get("Version", "")
        # distroless images have no Status: what is listed is there
        if not name or not version or not package.get("Status", "ok installed").endswith(" installed"):
            continue
        of = {"arch": package.get("Architecture", ""), "distro": release}
        if source := package.get("Source", "").split(" ")[0]:
            of["upstream"] = source
        purl = PackageURL("deb", distro, name, version, {key: value for key, value in of.items() if value})
        yield component(name, version, purl)


def distributions(texts: Iterable[str]) -> Iterator[Component]:
    """Python distributions, with their licenses as far as they name them."""
    for text in texts:
        said = HeaderParser().parsestr(text)
        name, version = said.get("Name", ""), said.get("Version", "")
        if name and version:
            plain = re.sub(r"[-_.]+", "-", name).lower()
            listed = [
                one.rpartition(" :: ")[2] for one in said.get_all("Classifier", []) if "License ::" in one
            ]
            named = said.get("License-Expression") or said.get("License") or "".join(listed[:1])
            yield component(name, version, PackageURL("pypi", None, plain, version), named.strip())


def pythons(headers: Iterable[str]) -> Iterator[Component]:
    for text in headers:
        if match := re.search(r'^#define PY_VERSION\s+"([^"]+)"', text, re.MULTILINE):
            yield component("python", match[1], PackageURL("generic", None, "python", match[1]), "PSF-2.0")


def component(name: str, version: str, purl: PackageURL, license_name: str = "") -> Component:
    usable = license_name and len(license_name) <= LICENSE_CHARS_MAX and "\n" not in license_name
    licenses = [LicenseFactory().make_from_string(license_name)] if usable else []
    kind = ComponentType.LIBRARY
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), type=kind, licenses=licenses)


def bill(name: str, version: str, found: Found, at: datetime) -> str:
    """The document. Raises ValueError where it does not agree with the schema, or where nothing was found."""
    parts = sorted(components(found), key=lambda one: str(one.purl))
    if not parts:
        raise ValueError(
            f"{name}: neither Debian's packages nor Python's were found: is it the root of an image?"
        )
    bom = Bom(
        components=parts,
        serial_number=uuid.uuid5(
            NAMESPACE, "\n".join([name, version, *map(str, (one.purl for one in parts))])
        ),
    )
    bom.metadata.component = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=name)
    bom.metadata.timestamp = at
    bom.register_dependency(bom.metadata.component, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if (wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ValueError(f"{name}: not as CycloneDX has it: {str(wrong.data)[:500]}")
    return f"{text}\n"


def main(argv: list[str] | None = None, stream: IO[bytes] = sys.stdin.buffer) -> int:
    parser = argparse.ArgumentParser(
        description="CycloneDX of an image's file system, read as tar from stdin."
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    said = parser.parse_args(argv)
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    at = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    try:
        text = bill(said.name, said.version, read(stream), at)
    except (ValueError, tarfile.TarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    said.out.parent.mkdir(parents=True, exist_ok=True)
    said.out.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

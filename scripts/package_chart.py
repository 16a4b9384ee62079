"""Pack the Helm chart: the same files give the same bytes, whoever packs them, and when. Helm itself is not needed.

    python scripts/package_chart.py [--version 1.2.3] [--to FOLDER]

Writes FOLDER/sandgate-VERSION.tgz (default: out/chart, and the version of pyproject.toml), and prints its path; what
`helm package` writes has the times of files in it. The version is of chart and app: images of that tag are asked for.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.generators import chart_version  # noqa: E402 - from any folder

CHART = ROOT / "charts" / "sandgate"
# What Helm and registries take as a version; `+` of semver is no part of an image's tag, so it is left out.
VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


def files(chart: Path = CHART) -> dict[str, bytes]:
    """Path below the chart's folder -> content, of what git has or would add, in the order of names."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=chart).stdout
    names = sorted(name for name in listed.split("\0") if name and (chart / name).is_file())
    return {name: (chart / name).read_bytes() for name in names}


def packed(content: dict[str, bytes], name: str = CHART.name) -> bytes:
    """A chart archive. No time, owner or mode of this machine is in it."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path, data in content.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Pack the Helm chart, the same bytes each time.")
    parser.add_argument("--version", default="", help="default: pyproject.toml's")
    parser.add_argument("--to", type=Path, default=ROOT / "out" / "chart", metavar="FOLDER")
    said = parser.parse_args(argv)
    content = files()
    chart = content["Chart.yaml"].decode()
    version = said.version or re.findall(r"^version: (.*)$", chart, re.MULTILINE)[0]
    if not VERSION.fullmatch(version):
        parser.error(f"--version {version}: must be as 1.2.3 or 1.2.3-rc.1")
    content["Chart.yaml"] = chart_version.versioned(chart, version).encode()
    said.to.mkdir(parents=True, exist_ok=True)
    archive = said.to / f"{CHART.name}-{version}.tgz"
    archive.write_bytes(packed(content))
    print(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())

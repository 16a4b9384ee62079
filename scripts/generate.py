"""Write every generated file, or say which are not up to date.

A generator is a module in ``scripts/generators/`` with ``generate() -> dict[str, str]``: path -> text.
Being there is being registered. What it writes is checked in, and ``make check`` compares.

    python scripts/generate.py           write
    python scripts/generate.py --check   exit 1 and show the difference
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import pkgutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIFF_LINES_MAX = 40


def wanted() -> dict[str, str]:
    """Every generated file and its text. Raises ValueError if two generators claim one path."""
    sys.path.insert(0, str(ROOT))
    files: dict[str, str] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules([str(ROOT / "scripts" / "generators")])):
        made: dict[str, str] = importlib.import_module(f"scripts.generators.{module}").generate()
        if twice := files.keys() & made.keys():
            raise ValueError(f"scripts/generators/{module}.py: {sorted(twice)} belong to another generator")
        files |= made
    return files


def difference(path: str, text: str) -> list[str]:
    """Unified diff of what is on disk against `text`; empty when equal."""
    file = ROOT / path
    found = file.read_text("utf-8") if file.exists() else ""
    names = f"{path} (found)", f"{path} (generated)"
    return list(difflib.unified_diff(found.splitlines(), text.splitlines(), *names, lineterm=""))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write generated files, or check them.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a file is not up to date"
    )
    check: bool = parser.parse_args(argv).check
    files = wanted()
    stale = {path: diff for path, text in files.items() if (diff := difference(path, text))}
    for path, diff in stale.items():
        if check:
            print(*diff[:DIFF_LINES_MAX], sep="\n")
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(files[path], "utf-8")
            print(f"wrote {path}")
    if check and stale:
        print(f"not up to date: {', '.join(stale)}; run `make fix`", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""For the checks that run in a trainer's environment."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[3]
for name in ("tests", "scripts"):
    # Some package of verl's environment installs regular packages of these names, which would hide our folders.
    if name not in sys.modules or sys.modules[name].__file__ is not None:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(ROOT / name)]

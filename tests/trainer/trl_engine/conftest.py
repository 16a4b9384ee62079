"""For the tests in TRL's environment that need a real engine, which runs in its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

# As in tests/trainer/trl/conftest.py.
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(Path(__file__).parents[2])]

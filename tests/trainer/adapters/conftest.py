"""For the tests beside the real packages of Tinker, SkyRL and OpenRLHF."""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from types import ModuleType

import typing_extensions

for name in ("tests", "scripts"):
    # Some package of the environment installs regular packages of these names, which would hide our folders.
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parents[3] / name)]

if sys.version_info < (3, 12):
    # skyrl 0.3.0 gives pydantic typing.TypedDict (skyrl/tinker/types.py), which that refuses before Python 3.12.
    typing.TypedDict = typing_extensions.TypedDict

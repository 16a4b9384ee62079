"""Runs in AReaL's environment: imports its packages once, then forks for each program that it is told of, a line each.

Importing them is 5 to 30 s, and each of the programs needs milliseconds. A program finds what `python PROGRAM` would
find, but for modules that were imported before."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import runpy
import sys
from typing import Any

import aiohttp  # noqa: F401 - for whoever is forked
import openai  # noqa: F401
import torch  # type: ignore[import-not-found]  # noqa: F401
from areal.experimental.openai import OpenAIProxyWorkflow  # type: ignore[import-not-found]  # noqa: F401
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow  # type: ignore[import-not-found]  # noqa: F401


def run(order: dict[str, Any]) -> None:
    """In the fork, which ends like any Python: by what the program raises, too; one that hangs says where."""
    for number, name in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ.clear()
    os.environ.update(order["env"])
    faulthandler.dump_traceback_later(order["seconds"], exit=True)
    sys.argv = order["argv"]
    sys.path[:0] = order["path"]
    runpy.run_path(order["argv"][0], run_name="__main__")


def main() -> None:
    gc.freeze()  # else each fork goes through all of it again when it ends
    print("READY", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print("ENDED", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

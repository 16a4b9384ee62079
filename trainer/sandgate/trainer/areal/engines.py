"""AReaL's inference engine as a workflow is given it: where its servers are, and what happens to its weights."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

from sandgate.contract.errors import InvalidBody

SERVERS = "AREAL_LLM_SERVER_ADDRS"
"""Where AReaL's launchers name the servers, with commas between them."""


class Follower(Protocol):
    """Who follows an engine. Called in the thread that calls the engine; the engine waits."""

    def hold(self) -> None:
        """No new turns: weights are about to change, or an evaluation begins."""

    def resume(self) -> None:
        """Turns go on."""

    def version(self, version: int) -> None:
        """What is sampled from now on is of this version."""

    def close(self) -> None:
        """The engine is done."""


def server_urls(engine: Any) -> tuple[str, ...]:
    """URLs of the servers that this engine was initialized with: AReaL has found them by then, in its own order
    (argument, its own processes, name_resolve, environment). Raises InvalidBody if it has none."""
    inner = getattr(engine, "_engine", engine)
    found = list(getattr(inner, "addresses", None) or ())
    found = found or [one for one in os.environ.get(SERVERS, "").split(",") if one]
    if not found:
        raise InvalidBody(
            f"the engine has no servers: initialize it with addr=, or set {SERVERS}", field="engine"
        )
    return tuple(one if "://" in one else f"http://{one}" for one in found)


def paused(engine: Any) -> bool:
    """Whether AReaL starts no episodes in it now: its weights change, or it waits for an evaluation."""
    executor = getattr(getattr(engine, "_engine", engine), "workflow_executor", None)
    return executor is not None and bool(executor.is_paused())


def follow(engine: Any, told: Follower) -> None:
    """Tell `told` of each pause, version and resume of this engine, in AReaL's order: turns are held before AReaL
    pauses, and go on after the version was told and AReaL has resumed. Each engine is followed by one."""
    inner = getattr(engine, "_engine", engine)

    def before(name: str, tell: Callable[[], None]) -> None:
        own = getattr(inner, name)

        @functools.wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            tell()
            return own(*args, **kwargs)

        setattr(inner, name, call)

    set_version, resume = inner.set_version, inner.resume

    @functools.wraps(set_version)
    def versioned(version: int) -> None:
        told.version(int(version))
        set_version(version)

    @functools.wraps(resume)
    def resumed() -> Any:
        said = resume()
        told.resume()
        return said

    before("pause", told.hold)
    before("destroy", told.close)
    inner.set_version, inner.resume = versioned, resumed

"""docs/reference/gateway.md: a gateway's settings file and its control API, from the code that has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec
from fastapi.routing import APIRoute

from sandgate.gateway import config
from sandgate.gateway.web import dependencies, leases, process, sessions, tasks
from scripts.generators.reasons import section
from scripts.generators.records import docs

PATH = "docs/reference/gateway.md"
INTRO = """\
<!-- Generated from gateway/sandgate/gateway/config.py and gateway/sandgate/gateway/web by `make fix`. Do not edit. -->
# The gateway

`python -m sandgate.gateway --config FILE` starts one. It needs the extra `gateway`; `gateway-arrow` for leases as
Arrow, `gateway-postgres` for a journal in a shared database, `gateway-vision` for images. SIGTERM drains it: running
turns finish, readiness is red at once, and what is new gets 503 with Retry-After. When it listens it prints one JSON
line, with its address as `listening`.

By hand, without a job (`sandgate run` and the operator do all of this):

```sh
openssl rand -hex 32 > secret                      # as secret_file; whoever reads it can make every key
sandgate gateway --config gateway.json             # {"listening": "http://127.0.0.1:8000", ...}
export KEY="$(sandgate key --secret-file secret)"  # of scope trainer; --job, --ttl and --scope admin
curl -H "authorization: Bearer $KEY" -H content-type:application/json \\
  -d '{"uid": "q1"}' http://127.0.0.1:8000/v1/sessions  # a session's handle
```

`gateway.json` is nested where the table below has dots. Besides the required keys this one has an address and a port:

```json
{
  "listen": {"host": "127.0.0.1", "port": 8000},
  "journal": "journal.sqlite",
  "engine": {"urls": ["http://127.0.0.1:8001"]},
  "model": {"name": "my-model", "tokenizer": "/models/my-model"},
  "secret_file": "secret"
}
```
"""
SETTINGS = "One JSON file. Unknown keys are refused; a missing default means that the key is required."
ENDPOINTS = (
    "Scope `admin` is the operator's, `trainer` the job's; `own` is the agent's or reward key of that session. Bodies, "
    "parameters and answers: `/openapi.json`. A key that stands twice in a body's object is a 400 that names it."
)
SCOPES = {"Admin": "admin", "Controller": "admin, trainer", "AnyKey": "admin, trainer, own"}


def generate() -> dict[str, str]:
    settings = section("Settings", SETTINGS, ("key", "default", "meaning"), list(keys(config.Config, "")))
    columns = ("method", "path", "scope", "what")
    return {PATH: "\n".join([INTRO, settings, section("Control API", ENDPOINTS, columns, list(endpoints()))])}


def keys(kind: type[msgspec.Struct], above: str) -> Iterator[tuple[str, str, str]]:
    """Of a settings class and those inside it, in the order in which they are written."""
    known, hints = docs(kind), get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        name = f"{above}{field.name}"
        inner = hints[field.name]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from keys(inner, f"{name}.")
        else:
            yield f"`{name}`", default(field), known.get(field.name, "")


def default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default).decode()}`"
    return "" if field.default_factory is msgspec.NODEFAULT else "`{}`"


def endpoints() -> Iterator[tuple[str, str, str, str]]:
    for module in (sessions, tasks, leases, process):
        routers = [module.router, *([process.probes] if module is process else [])]
        for route in (route for router in routers for route in router.routes):
            assert isinstance(route, APIRoute)
            method = min(route.methods or ())
            what = " ".join((inspect.getdoc(route.endpoint) or "").split())
            yield method, f"`{route.path}`", scope(route), what


def scope(route: APIRoute) -> str:
    """By the door that its key comes through."""
    hints = get_type_hints(route.endpoint, include_extras=True)
    found = [text for name, text in SCOPES.items() if getattr(dependencies, name) in hints.values()]
    return found[0] if found else "none"

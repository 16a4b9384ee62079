"""KubeClient: a small typed client of one API server: the verbs that the operator needs, over dicts.

Every verb but `create` may be repeated, and is: on 429, 5xx and broken connections, until the deadline. So a restart of
the API server is a pause. What cannot be mended by repeating is raised at once, as an error of contract.errors.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from sandgate.contract import errors
from sandgate.contract.errors import (
    Conflict,
    Gone,
    InvalidBody,
    NotFound,
    SandgateError,
    Unauthorized,
    Unavailable,
)
from sandgate.contract.labels import MANAGER
from sandgate.operator.kubernetes.access import Access
from sandgate.operator.kubernetes.kinds import KINDS as KINDS
from sandgate.operator.kubernetes.kinds import Ref as Ref

Json = Any
Items = list[Json]

DEADLINE_S = 30.0
"""How long one call is repeated; an API server restarts in a few seconds."""
ATTEMPT_S = 15.0
"""One attempt's answer: an API server gives up a write after 60 s, but one that takes this long is in trouble."""
MANY_S = 60.0
"""The same for a collection, which is deleted one after the other: as long as the API server itself works on it. Who
asks again sooner only has it begin anew."""
CONNECT_S = 5.0
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between attempts where the server does not say, with up to a quarter added at random; then the last one."""
RETRY_AFTER_S_MAX = 10.0
"""A longer Retry-After is cut: looking again is cheap."""
IN_FLIGHT = 64
"""Requests at once; more only wait in the server's own queues (priority and fairness)."""
MANY_IN_FLIGHT = 24
"""Of them, collections: each may take a minute, and what jobs begin must not wait behind what others left."""
IDLE_S = 60.0
"""An idle connection is kept this long: a TLS handshake costs more than a call."""
LIST_CHUNK = 500
LIST_RESTARTS = 2
"""A chunked list that expired (410: compaction) is begun again this often; then it is asked for in one piece."""
ERROR_CHARS_MAX = 2_000

_APPLY = {"Content-Type": "application/apply-patch+yaml", "Accept": "application/json"}
_MERGE = {"Content-Type": "application/merge-patch+json", "Accept": "application/json"}
_STEPS = {"Content-Type": "application/json-patch+json", "Accept": "application/json"}
_PLAIN = {"Content-Type": "application/json", "Accept": "application/json"}
_OURS = {"fieldManager": MANAGER}
_METADATA = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}

Observe = Callable[[str, str, str, float], None]
"""Told of every attempt: verb, kind, HTTP status (or the error's name), seconds."""


HttpSession = aiohttp.ClientSession
"""For who holds sessions and makes none: aiohttp has its home here."""


def session(access: Access, *, listed: Callable[[str], None]) -> aiohttp.ClientSession:
    """A session that sends the access's current token with every request, for whoever brings their own verbs (kopf).
    `listed` is told the path of every list's first page that was answered. The caller closes it."""

    async def signed(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if token := access.token.value():
            request.headers["Authorization"] = f"Bearer {token}"
        response = await handler(request)
        if response.status == 401:
            access.token.forget()
        query = request.url.query
        if request.method == "GET" and response.status == 200 and not query.keys() & {"watch", "continue"}:
            listed(request.url.path)
        return response

    return aiohttp.ClientSession(connector=_connector(access), middlewares=(signed,))


def _connector(access: Access) -> aiohttp.TCPConnector:
    # What a cancelled call or watch gave up waits for the server's goodbye, and closing the client does not wait for
    # that: asked for, it is cut after 2 s, or then. (aiohttp takes this where asyncio needs it: cpython#118950.)
    return aiohttp.TCPConnector(
        limit=0,
        ssl=access.tls or True,
        keepalive_timeout=IDLE_S,
        enable_cleanup_closed=NEEDS_CLEANUP_CLOSED,
    )


class KubeClient:
    """One API server. Raises of contract.errors: NotFound, Conflict, Forbidden, Unauthorized, InvalidBody (400, 422;
    `field` where the server names one), TooLarge, and after the deadline Overloaded (429) or Unavailable (5xx, no
    connection). Bodies need apiVersion, kind, metadata.name and metadata.namespace."""

    def __init__(
        self,
        access: Access,
        *,
        observe: Observe | None = None,
        deadline_s: float = DEADLINE_S,
        attempt_s: float = ATTEMPT_S,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self.access = access
        self.observe = observe
        self._deadline_s = deadline_s
        self._timeout = aiohttp.ClientTimeout(total=attempt_s, sock_connect=min(CONNECT_S, attempt_s))
        self._of_many = aiohttp.ClientTimeout(
            total=max(attempt_s, MANY_S), sock_connect=self._timeout.sock_connect
        )
        self._slots = asyncio.Semaphore(in_flight)
        self._many = asyncio.Semaphore(min(MANY_IN_FLIGHT, in_flight))
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    async def aclose(self) -> None:
        """Close the connections. A call after it is a RuntimeError."""
        self._closed = True
        if self._http is not None:
            await self._http.close()
            self._http = None
            await asyncio.sleep(0)  # transports let go of their sockets in the loop's next turn

    # -- writing ------------------------------------------------------------------------------------------------------

    async def apply(self, body: Json, *, force: bool = True) -> Json:
        """Server-side apply as field manager "sandgate": created, or brought to what the body says. Without `force`
        a field that another manager owns raises Conflict."""
        ref = Ref.of(body)
        query = _OURS | {"force": "true"} if force else _OURS
        return await self._call("apply", ref.kind, "PATCH", ref.path, body, query=query, headers=_APPLY)

    async def create(self, body: Json) -> Json:
        """Raises Conflict if the name is taken: also by this very call, if an earlier answer of it was lost. A field
        that the kind does not have is InvalidBody, never dropped."""
        ref = Ref.of(body)
        path, query = KINDS[ref.kind].path(ref.namespace), _OURS | {"fieldValidation": "Strict"}
        return await self._call("create", ref.kind, "POST", path, body, query=query)

    async def replace(self, body: Json) -> Json:
        """Write the whole object; raises Conflict unless its metadata.resourceVersion is the current one."""
        ref = Ref.of(body)
        return await self._call("update", ref.kind, "PUT", ref.path, body, query=_OURS)

    async def patch(self, kind: str, namespace: str, name: str, body: Json) -> Json:
        """Merge patch. With metadata.resourceVersion in the body, raises Conflict if it is another by now."""
        path = KINDS[kind].path(namespace, name)
        return await self._call("patch", kind, "PATCH", path, body, query=_OURS, headers=_MERGE)

    async def patch_status(self, kind: str, namespace: str, name: str, body: Json) -> Json:
        """The same, of the status alone; the body holds `status` at its top."""
        path = KINDS[kind].path(namespace, name, "status")
        return await self._call("patch_status", kind, "PATCH", path, body, query=_OURS, headers=_MERGE)

    async def put_status(self, kind: str, namespace: str, name: str, status: Json, *, uid: str) -> Json:
        """The whole status of the object with that uid. Raises NotFound if the name is another object's by now, also.

        By a JSON patch that tests the uid: of a merge patch of a custom resource's status an API server overlooks all
        metadata but the resourceVersion, which any change of the spec makes another."""
        path = KINDS[kind].path(namespace, name, "status")
        steps = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        try:
            return await self._call("patch_status", kind, "PATCH", path, steps, query=_OURS, headers=_STEPS)
        except InvalidBody as error:  # also what a status that the schema refuses is
            found = await self.get(kind, namespace, name)
            if found["metadata"]["uid"] != uid:
                raise NotFound(f"404: {kind} {name} is another object by now") from error
            raise

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None
    ) -> bool:
        """False if it was gone. With `uid`, raises Conflict if the name is another object's by now."""
        options: dict[str, Json] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._call("delete", kind, "DELETE", KINDS[kind].path(namespace, name), options)
        except NotFound:
            return False
        return True

    async def delete_many(self, kind: str, namespace: str, *, labels: str) -> None:
        """All objects with these labels, in one request. Refuses an empty selector: it would be all there are."""
        if not labels or not namespace:
            raise ValueError("delete_many needs a namespace and a label selector")
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        path, query = KINDS[kind].path(namespace), {"labelSelector": labels}
        async with self._many:
            await self._call("delete_many", kind, "DELETE", path, options, query=query, timeout=self._of_many)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        """Raises NotFound."""
        return await self._call("get", kind, "GET", KINDS[kind].path(namespace, name))

    async def list(
        self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "", chunks: int = 0
    ) -> Items:
        """All of one moment, in chunks, or the first so many `chunks`; `namespace` "" means every namespace. Items have
        apiVersion and kind."""
        known = KINDS[kind]
        found = await self._list("list", kind, namespace, labels, _PLAIN, fields, chunks)
        for one in found:
            one.setdefault("apiVersion", known.api_version)
            one.setdefault("kind", kind)
        return found

    async def list_metadata(self, kind: str, namespace: str = "", *, labels: str = "") -> Items:
        """The same as PartialObjectMetadata: a tenth of the bytes of pods."""
        return await self._list("list_metadata", kind, namespace, labels, _METADATA)

    async def serves(self, kind: str) -> bool:
        """Does the server know this kind: is its CRD installed?"""
        known = KINDS[kind]
        try:
            found = await self._call("discover", kind, "GET", known.root)
        except NotFound:
            return False
        return any(one["name"] == known.plural for one in found["resources"])

    async def _list(
        self,
        verb: str,
        kind: str,
        namespace: str,
        labels: str,
        headers: Mapping[str, str],
        fields: str = "",
        chunks: int = 0,
    ) -> Items:
        path = KINDS[kind].path(namespace)
        for restart in range(LIST_RESTARTS + 1):
            query = {"labelSelector": labels} if labels else {}
            if fields:
                query["fieldSelector"] = fields
            if restart < LIST_RESTARTS or chunks:
                query["limit"] = str(LIST_CHUNK)
            found: Items = []
            for number in itertools.count(1):
                try:
                    page = await self._call(verb, kind, "GET", path, query=query, headers=headers)
                except Gone:
                    break
                found += page["items"] or ()  # null where metadata of nothing was asked for
                if number == chunks or not page["metadata"].get("continue"):
                    return found
                query["continue"] = page["metadata"]["continue"]
        raise Unavailable(f"list of {kind} expired again and again")

    # -- one call, repeated -------------------------------------------------------------------------------------------

    async def _call(
        self,
        verb: str,
        kind: str,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] = MappingProxyType({}),
        headers: Mapping[str, str] = _PLAIN,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Json:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        end = time.monotonic() + self._deadline_s
        tries = 0
        signed_anew = False
        while True:
            try:
                return await self._once(
                    verb, kind, method, path, data, query, headers, timeout or self._timeout
                )
            except Unauthorized:
                if signed_anew:
                    raise
                signed_anew = True  # the token file may hold a newer one
                self.access.token.forget()
                continue
            except SandgateError as error:
                if error.retry_after is None:
                    raise
                last, wait = error, error.retry_after
            pause = BACKOFF_S[min(tries, len(BACKOFF_S) - 1)] * (1 + random.random() / 4)
            pause = max(pause, min(wait, RETRY_AFTER_S_MAX))
            tries += 1
            if time.monotonic() + pause >= end:
                raise last
            await asyncio.sleep(pause)

    async def _once(
        self,
        verb: str,
        kind: str,
        method: str,
        path: str,
        data: bytes | None,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> Json:
        if self._closed:
            raise RuntimeError("the client is closed: another session would be closed by nobody")
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=_connector(self.access))
        code, start = "cancelled", 0.0
        async with self._slots:
            start = time.monotonic()
            try:
                if token := self.access.token.value():
                    headers = {**headers, "Authorization": f"Bearer {token}"}
                async with self._http.request(
                    method,
                    self.access.server + path,
                    params=query,
                    data=data,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                ) as response:
                    code = str(response.status)
                    raw = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                code = type(error).__name__
                raise _away(self.access.server, error) from error
            finally:
                if self.observe is not None:
                    self.observe(verb, kind, code, time.monotonic() - start)
        if 200 <= response.status < 300:
            try:
                return json.loads(raw)
            except ValueError as error:
                raise _away(self.access.server, error) from error
        raise failure(response.status, raw, response.headers.get("Retry-After", ""))


def failure(status: int, raw: bytes, retry_after: str = "") -> SandgateError:
    """What an answer other than 2xx means. The text is the server's own."""
    try:
        said = json.loads(raw)
        text, details = str(said["message"]), said.get("details") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        text, details = raw.decode("utf-8", "replace"), {}
    text = f"{status}: {text[:ERROR_CHARS_MAX]}"
    try:
        wait = float(retry_after or details.get("retryAfterSeconds") or 0.0)
    except ValueError:
        wait = 0.0
    if status == 429:
        return errors.Overloaded(text, retry_after=wait)
    if status >= 500 and not text.startswith(_NOT_TYPED):
        return Unavailable(text, retry_after=wait)
    kinds: dict[int, type[SandgateError]] = {
        401: Unauthorized, 403: errors.Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 413: errors.TooLarge,
    }  # fmt: skip
    if status in kinds:
        return kinds[status](text)
    causes = details.get("causes") or [{}]
    named = _FIELD.search(text)
    return errors.InvalidBody(text, field=causes[0].get("field") or (named and (named[1] or named[2])))


_NOT_TYPED = "500: failed to create typed patch object"
"""Server-side apply says of an unknown or mistyped field that the server failed: no repetition mends that."""
_FIELD = re.compile(r"""unknown field "([^"]+)"|Kind=\w+\): \.(\S+): """)


def _away(server: str, error: Exception) -> Unavailable:
    return Unavailable(f"{server} does not answer: {str(error) or type(error).__name__}", retry_after=0.0)

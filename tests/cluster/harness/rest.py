"""The API server for tests: plain HTTP with a client certificate. kubectl costs 0.1 s of processor; this does not."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TIMEOUT_S = 30.0


class Refused(Exception):
    """Any answer but 2xx: `status` and what the server said."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said}")
        self.status = status


class Rest:
    """One connection per call, so an API server that was killed in between costs nothing but that call."""

    def __init__(
        self, url: str, *, ca: Path, cert: Path | None = None, key: Path | None = None, token: str = ""
    ) -> None:
        self.url = url
        self.context = ssl.create_default_context(cafile=str(ca))
        if cert is not None:
            self.context.load_cert_chain(str(cert), str(key))
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def text(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> str:
        """The answer as it came. Raises Refused, and OSError or HTTPException when nobody answers."""
        where = urlsplit(self.url)
        connection = http.client.HTTPSConnection(where.netloc, context=self.context, timeout=TIMEOUT_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content_type, **self.headers})
            answer = connection.getresponse()
            said = answer.read().decode("utf-8", "replace")
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise Refused(answer.status, said)
        return said

    def call(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """The same as an object."""
        found: dict[str, Any] = json.loads(self.text(method, path, body, content_type=content_type))
        return found

    def get(self, path: str) -> dict[str, Any]:
        return self.call("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST to a collection."""
        return self.call("POST", path, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A merge patch; of `.../status` too."""
        return self.call("PATCH", path, body, content_type=MERGE)

    def answers(self, path: str = "/readyz") -> bool:
        """Whether it answers 2xx now."""
        try:
            self.text("GET", path)
        except (Refused, OSError, http.client.HTTPException):
            return False
        return True

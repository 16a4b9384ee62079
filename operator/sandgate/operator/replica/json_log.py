"""Logs as JSON, one object a line, or as text; keys and tokens are never written."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, TextIO

from sandgate.contract.keys import PREFIX

TEXT_CHARS_MAX = 8_000
"""Of a message, and of a traceback's end: a collector drops longer lines."""
SECRET = re.compile(rf"{re.escape(PREFIX)}[\w.~-]+|eyJ[\w-]+\.[\w-]+\.[\w-]*|(?<=Bearer )\S+", re.IGNORECASE)
HIDDEN = "[hidden]"
QUIET = {"kopf": logging.WARNING, "aiohttp": logging.WARNING, "asyncio": logging.WARNING}
"""Libraries that tell of every object and request: with level debug they tell it, without their own details, which
have the bodies of objects."""


class JsonLines(logging.Formatter):
    """ts (RFC 3339, UTC), level, logger, message; `error` with the traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        said = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _safe(record.getMessage())[:TEXT_CHARS_MAX],
        }
        if record.exc_info:
            said["error"] = _safe(self.formatException(record.exc_info))[-TEXT_CHARS_MAX:]
        return json.dumps(said, ensure_ascii=False)


class TextLines(logging.Formatter):
    """For people; a traceback is lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        return _safe(super().formatMessage(record))[:TEXT_CHARS_MAX]

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _safe(super().formatException(ei))[-TEXT_CHARS_MAX:]


def install(stream: TextIO, level: str = "info", form: str = "json") -> None:
    """All of this process's logs go there; earlier handlers of the root are dropped."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines() if form == "text" else JsonLines())
    least = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=least, force=True)
    for name, quiet in QUIET.items():
        logging.getLogger(name).setLevel(logging.INFO if least == logging.DEBUG else max(least, quiet))
    logging.captureWarnings(True)


def _safe(text: str) -> str:
    return SECRET.sub(HIDDEN, text)

"""JSON logs on standard error, one object a line. Never prompt text: only what callers put into `extra`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and the record's extra fields.

    `always`: fields of every record.
    """

    def __init__(self, always: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("poolpilot_picker."),
            "message": record.getMessage(),
            **self._always,
        }
        fields.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(fields, enc_hook=str).decode()
        except UnicodeEncodeError:
            # A file's name may hold bytes that are no text.
            return json.dumps(fields, default=str, ensure_ascii=False).encode("utf-8", "replace").decode()


def configure(level: str, always: Mapping[str, object] | None = None) -> None:
    """Sends the picker's logs to standard error at `level` (debug, info, warning, error), with fields `always`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(always))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

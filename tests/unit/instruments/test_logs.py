"""JSON logs: one object a line, whatever is logged."""

from __future__ import annotations

import logging
import sys

import msgspec

from poolpilot_picker.instruments.logs import JsonFormatter


def line(record: logging.LogRecord) -> dict[str, object]:
    """The record as it stands in the log."""
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return msgspec.json.decode(text)  # type: ignore[no-any-return]


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    """A record with extra fields."""
    made = logging.LogRecord("poolpilot_picker.extproc", logging.INFO, "x.py", 1, message, arguments, None)
    vars(made).update(extra)
    return made


def test_fields() -> None:
    assert line(record("placed %s", "x", request_id="r", count=3, names=["a"])) | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "extproc",
        "message": "placed x",
        "request_id": "r",
        "count": 3,
        "names": ["a"],
    }


def test_what_is_no_json_is_written_as_text() -> None:
    fields = line(record("x", path=object, error=ValueError("no"), number=float("nan")))
    assert fields["error"] == "no" and "object" in str(fields["path"])
    assert fields["number"] is None


def test_a_line_break_cannot_forge_a_record() -> None:
    assert line(record('x\n{"level":"error"}', who="a\r\nb"))["who"] == "a\r\nb"


def test_exceptions_are_one_field() -> None:
    made = record("failed")
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError:
        made.exc_info = sys.exc_info()
    assert "ZeroDivisionError: no" in str(line(made)["exception"])


def test_lone_surrogates_are_survived() -> None:
    """Names of files on the command line may hold bytes that are no text."""
    assert line(record("x \udcff", path="\udcff", at=object))["message"] is not None

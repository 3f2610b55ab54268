from typing import Any

from poolpilot_picker.extproc.wire.connection import Connection
from poolpilot_picker.extproc.wire.fast_replies import ReplyWriter
from poolpilot_picker.extproc.wire.fast_requests import Read, RequestReader
from poolpilot_picker.extproc.wire.fields import Section
from poolpilot_picker.extproc.wire.limits import Limits
from poolpilot_picker.extproc.wire.stream import Call
from poolpilot_picker.extproc.wire.stream import Stream as Stream

class Messages:
    def __init__(
        self, reader: RequestReader, writer: ReplyWriter, replies: tuple[type, type, type, Any], block: bytes, most: int
    ) -> None: ...
    def read(self, data: bytes, at: int, end: int) -> Read | None: ...

class Frames:
    @property
    def at(self) -> int: ...
    @property
    def turns(self) -> int: ...
    def __init__(
        self,
        connection: Connection,
        messages: Messages | None,
        blocks: dict[bytes, Section],
        limits: Limits,
        no_call: Call,
    ) -> None: ...
    def run(self, data: bytes, at: int, turns: int, credit: int) -> int: ...

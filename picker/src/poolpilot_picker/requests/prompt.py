"""Decoded bodies → the prompt as bytes, in the order in which a chat template shows it. Used by `parse`.

Tools first, then system text, then message after message: so the bytes of a longer conversation start with those of a
shorter one. The same text gives the same bytes whether it came as a string or as parts. Two control bytes stand for
what the template writes around a message; `requests.tokens` weighs them accordingly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw
from xxhash import xxh64_hexdigest

from poolpilot_picker.requests import media
from poolpilot_picker.requests.head import NO_HINT, VideoHint
from poolpilot_picker.requests.shapes import ABSENT, CONTENT, Content, Message, Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MESSAGE: Final = b"\x1e"
"""Begins a message; about three template tokens."""
BODY: Final = b"\x1f"
"""Ends the role, or a part that is no text; about one token."""

MOST_MEDIA: Final = 4_096
"""Images and the like that are looked at; no engine takes as many. A body of a megabyte could hold 77,000."""

MAX_DEPTH: Final = 2
"""Of results inside results: each is decoded on its own, so the cost would grow with depth × size."""

_HEADS: Final[Mapping[str | None, bytes]] = {
    role: MESSAGE + (role or "").encode() + BODY for role in (None, "system", "developer", "user", "assistant", "tool")
}

_WEIGHTLESS: Final = bytes.maketrans(b"0123456789abcdef", bytes(range(0x80, 0x90)))
"""Digests are written in bytes that the token estimate gives no weight."""


class Prompt:
    """Collects the prompt's bytes in template order, and the tokens of what is not text."""

    __slots__ = ("_counted", "_depth", "_length", "_pieces", "ids", "marks", "media_tokens", "raw", "video")

    def __init__(self, video: VideoHint = NO_HINT) -> None:
        self._pieces: list[bytes] = []
        self.raw = self._pieces.append
        """Adds bytes that the template shows about as they are: text, JSON of tools and calls."""
        self._length = 0
        self._counted = 0
        self._depth = 0
        self.marks: list[tuple[int, float]] = []
        """(byte position, tokens) of images, audio, video."""
        self.media_tokens = 0.0
        self.ids = 0
        """Number of token ids, where the prompt was given as such."""
        self.video = video

    def joined(self) -> bytes:
        """All of it, joined once."""
        return b"".join(self._pieces)

    def text(self, text: str) -> None:
        """Plain text."""
        self.raw(text.encode())

    def json(self, *values: Raw) -> None:
        """JSON values as the client wrote them; absent ones and null are left out."""
        for value in values:
            if value is not ABSENT and (piece := bytes(value)) != b"null":
                self.raw(BODY + piece)

    def attach(self, data: bytes, tokens: float) -> None:
        """Something that is no text: its digest takes part in the chain, its tokens are counted apart."""
        self.raw(BODY + xxh64_hexdigest(data).encode().translate(_WEIGHTLESS))
        self._length += sum(map(len, self._pieces[self._counted :]))
        self._counted = len(self._pieces)
        self.marks.append((self._length, tokens))
        self.media_tokens += tokens

    def tools(self, *schemas: Raw) -> None:
        """Tool schemas, which templates put before everything else."""
        for schema in schemas:
            if schema is not ABSENT and (piece := bytes(schema)) not in (b"null", b"[]"):
                self.raw(MESSAGE)
                self.raw(piece)

    def head(self, role: str) -> None:
        """Begins a message."""
        self.raw(_HEADS.get(role) or MESSAGE + role.encode() + BODY)

    def content(self, content: Content) -> None:
        """A message's content: a string or parts; texts are joined by a line feed, as engines do."""
        if type(content) is str:
            self.raw(content.encode())
        elif content:
            self._parts(content)

    def items(self, items: Sequence[Part]) -> int:
        """Prompts of their own that are parts, with text or a medium or both; returns how many."""
        between = b""
        for item in items:
            self.raw(between + (item.text or "").encode())
            self._other(item)
            between = MESSAGE
        return len(items)

    def messages(self, messages: Sequence[Message]) -> None:
        """Chat messages, or items of the Responses API."""
        raw = self.raw
        for message in messages:
            role, content = message.role, message.content
            raw(_HEADS.get(role) or MESSAGE + (role or "").encode() + BODY)
            if message.reasoning_content:
                self.text(message.reasoning_content)
            if message.reasoning is not ABSENT:
                self.json(message.reasoning)
            if type(content) is str:
                raw(content.encode())
            elif content:
                self.content(content)
            if message.refusal:
                self.text(message.refusal)
            if message.tool_calls is not ABSENT or message.function_call is not ABSENT:
                self.json(message.tool_calls, message.function_call)
            if message.type is not None and message.type != "message":
                self._item(message)

    def _item(self, item: Message) -> None:
        # Items of the Responses API that are no messages: calls, their results, reasoning.
        self.json(item.name, item.arguments, item.summary)
        if item.output is not ABSENT:
            self._nested(item.output)

    def _parts(self, parts: Sequence[str | Part]) -> None:
        between = b""
        for part in parts:
            if type(part) is str:
                self.raw(between + part.encode())
                between = b"\n"
                continue
            assert isinstance(part, Part)
            said = part.text or part.refusal or part.thinking
            if said:
                self.raw(between + said.encode())
                between = b"\n"
            else:
                self._other(part)

    def _other(self, part: Part) -> None:
        if len(self.marks) >= MOST_MEDIA:
            return
        # A medium with a name of its own is known to the engine by that, whether it comes with it or not.
        name = b"" if part.uuid is ABSENT or (given := bytes(part.uuid)) == b"null" else given
        for raw in (part.image_url, part.source, part.image):
            if raw is not ABSENT:
                data = bytes(raw)
                document = part.type == "document"
                self.attach(name or data, media.file_tokens(data) if document else media.image_tokens(data))
        for raw in (part.input_audio, part.audio_url, part.audio):
            if raw is not ABSENT:
                data = bytes(raw)
                self.attach(name or data, media.audio_tokens(data))
        for raw in (part.video_url, part.video):
            if raw is not ABSENT:
                hint = self.video
                tokens = media.video_tokens(fps=hint.fps, seconds=hint.seconds, width=hint.width, height=hint.height)
                self.attach(name or bytes(raw), tokens)
        for raw in (part.image_embeds, part.audio_embeds):
            if raw is not ABSENT:
                data = bytes(raw)
                self.attach(name or data, media.embeds_tokens(data))
        for raw in (part.file, part.file_data, part.file_id, part.file_url, part.data):
            if raw is not ABSENT:
                data = bytes(raw)
                self.attach(data, media.file_tokens(data))
        self.json(part.name, part.input)
        if part.content is not ABSENT:
            self._nested(part.content)

    def _nested(self, raw: Raw) -> None:
        # A tool's result: text or parts where it has that form, any JSON otherwise.
        self.raw(BODY)
        content: Content = None
        if self._depth < MAX_DEPTH:
            try:
                content = CONTENT.decode(raw)
            except (msgspec.DecodeError, RecursionError):
                content = None
        if content is None:
            self.raw(bytes(raw))
            return
        self._depth += 1
        self.content(content)
        self._depth -= 1

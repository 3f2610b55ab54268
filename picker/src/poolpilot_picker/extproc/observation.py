"""The body of one answer, watched chunk by chunk: first token and usage, told to the account as they are proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from poolpilot_picker.extproc.account import NO_USAGE
from poolpilot_picker.requests import UsageReader

if TYPE_CHECKING:
    from poolpilot_picker.extproc.account import Account
    from poolpilot_picker.flow.pool import Placement


class Observation:
    """Reads one response body. `by_chunk`: the data plane sends it as it comes, so that times mean something."""

    __slots__ = ("_account", "_by_chunk", "_placement", "_reader")

    def __init__(self, account: Account, placement: Placement, *, content_type: str | bytes, by_chunk: bool) -> None:
        self._account = account
        self._placement = placement
        self._by_chunk = by_chunk
        text = content_type if isinstance(content_type, str) else content_type.decode("latin-1")
        self._reader = UsageReader(streamed=text.strip().lower().startswith("text/event-stream"))

    def feed(self, chunk: bytes, now: float) -> None:
        """The next bytes of the body."""
        self._reader.feed(chunk)
        if self._by_chunk and self._reader.first_token_seen and not self._placement.first_token_seen:
            self._account.first_token(self._placement, now)

    def finish(self) -> None:
        """The body was seen to its end: what it proves may be learned. A body that was cut off proves no length."""
        reader, placement = self._reader, self._placement
        reader.finish()
        usage = reader.usage or NO_USAGE
        if not usage.completion_tokens and placement.request.stream and reader.events:
            # No usage in the answer, or one of zeros: one content event is about one token.
            usage = msgspec.structs.replace(usage, completion_tokens=reader.events)
        self._account.usage(placement, usage)

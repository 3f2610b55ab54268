"""The body of an answer that does not pass unread: it is watched, or the client's model has to stand in it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from poolpilot_picker.extproc.observation import Observation
from poolpilot_picker.extproc.renaming import Renaming, can_be_renamed, is_encoded
from poolpilot_picker.extproc.replies import (
    DUPLEX,
    NO_MUTATION,
    BodyMode,
    BodyReply,
    ModeOverride,
    Mutation,
    Reply,
    streamed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolpilot_picker.extproc.account import Account
    from poolpilot_picker.flow.pool import Placement

RENAMED_IN: Final = (BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED)
"""Of BUFFERED_PARTIAL a beginning comes, that nobody may change; in NONE nothing; GRPC is no JSON."""
_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED


class AnswerBody:
    """Of one answer. `override`: modes to ask for, so that the body comes at all."""

    __slots__ = ("_mode", "_observation", "_renaming", "override", "unmeasured")

    def __init__(
        self,
        mode: BodyMode,
        override: ModeOverride | None,
        observation: Observation | None,
        renaming: Renaming | None,
        *,
        measured: bool,
    ) -> None:
        self._mode = mode
        self._observation = observation
        self._renaming = renaming
        self.override = override
        self.unmeasured = measured and renaming is not None and mode is not BodyMode.BUFFERED
        """Its length is said, and will be another: a data plane that streams the body takes that for a fault."""

    @property
    def renames(self) -> bool:
        """Chunks are changed."""
        return self._renaming is not None

    def watch(self, chunk: bytes, now: float) -> None:
        """The next bytes, as the pod sent them."""
        if self._observation is not None:
            self._observation.feed(chunk, now)

    def renamed(self, chunk: bytes, end_of_stream: bool) -> list[Reply]:
        """The answer to a chunk that may name the model."""
        assert self._renaming is not None
        buffered = self._mode is BodyMode.BUFFERED
        # Before trailers, what is buffered comes without the end of the stream, and all the same as a whole.
        body = self._renaming.feed(chunk, last=end_of_stream or buffered)
        if self._mode is _FULL_DUPLEX:
            return streamed((body,), end_of_stream, request=False) if body or end_of_stream else []
        if body == chunk:
            return [BodyReply(request=False)]
        # What is buffered has a length, which stands in the answer to the body; what is streamed has lost it.
        length = Mutation(set_headers=(("content-length", str(len(body))),)) if buffered else NO_MUTATION
        return [BodyReply(request=False, mutation=length, body=body)]

    def held_back(self) -> list[Reply]:
        """What has to go on before trailers do."""
        held = self._renaming.flush() if self._renaming is not None and self._mode is _FULL_DUPLEX else b""
        return streamed((held,), False, request=False) if held else []

    def finish(self) -> None:
        """It has been seen to its end."""
        if self._observation is not None:
            self._observation.finish()


def answer_body(
    account: Account,
    placement: Placement,
    received: Mapping[str, str | bytes],
    modes: tuple[BodyMode, BodyMode],
    *,
    observed: bool,
    rewrote: bool,
) -> AnswerBody | None:
    """For an answer with these headers, in these (request, response) modes; None where it passes unread after all."""
    model = placement.request.model
    renamed = rewrote and bool(model) and can_be_renamed(received)
    if is_encoded(received) or not (observed or renamed):
        return None
    request_mode, mode = modes
    override = None
    if mode is BodyMode.NONE and request_mode not in DUPLEX:
        # Both modes are said: an unset one would mean NONE. Beside a full duplex mode it would be ignored.
        mode = BodyMode.STREAMED
        override = ModeOverride(request=request_mode, response=mode)
    renaming = observation = None
    if renamed and mode in RENAMED_IN:
        renaming = Renaming(placement.request.target_model, model)
    elif renamed:
        account.metrics.events.labels("model-not-renamed").inc()
    if observed:
        by_chunk = mode in (BodyMode.STREAMED, _FULL_DUPLEX)
        content_type = received.get("content-type", "")
        observation = Observation(account, placement, content_type=content_type, by_chunk=by_chunk)
    return AnswerBody(mode, override, observation, renaming, measured="content-length" in received)

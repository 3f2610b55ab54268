"""A model that was rewritten: the pod is asked for the target, and the client finds the model that it asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gateway_pods import sse_events

if TYPE_CHECKING:
    from gateway_site import Lane

MODES = ["partial", "buffered", "duplex"]
CHUNKS = 500


def body(**more: object) -> bytes:
    """A chat for a model that no pod has."""
    return json.dumps({"model": "what-the-client-asked-for", "messages": [], **more}).encode()


@pytest.mark.parametrize("protocol", ["http1", "http2"])
@pytest.mark.parametrize("mode", MODES)
async def test_every_event_of_a_stream(lane: Lane, mode: str, protocol: str) -> None:
    """The pods' events name the model `m`."""
    done = await lane.request(
        mode,
        body(messages=[{"role": "user", "content": "a"}], stream=True),
        script=f"*=sse.{CHUNKS}.0",
        protocol=protocol,
        headers={"x-llm-d-model-name-rewrite": "m"},
    )
    assert done.response.status == 200 and done.response.complete
    wanted = b"".join(sse_events(CHUNKS)).replace(b'"model": "m"', b'"model": "what-the-client-asked-for"')
    assert wanted.count(b"what-the-client-asked-for") == CHUNKS + 2
    assert done.response.body == wanted
    assert lane.picker.outcomes() == {"served": 1}


@pytest.mark.parametrize("target", ["m", "a-much-longer-name-than-what-the-client-asked-for"])
@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_with_a_length(lane: Lane, mode: str, target: str) -> None:
    """The pod sends the request back, so both directions are seen; its content-length is that of another name."""
    sent = body(messages=[{"role": "user", "content": "word " * 3_000}])
    done = await lane.request(mode, sent, script="*=echo", headers={"x-llm-d-model-name-rewrite": target})
    assert done.response.status == 200 and done.response.complete
    assert done.response.body == sent
    [hit] = done.hits
    assert hit.length == len(sent) - len("what-the-client-asked-for") + len(target)

"""The reply time of a picker by itself: exchanges on one connection as Envoy has them, but without an Envoy.

Measured from outside, so that it costs the picker nothing: from handing the last byte of a request to the socket to
having the first of the reply. That is what the picker takes, and two passages through loopback and the wake-ups of both
sides besides: an upper bound of the time from the last request byte to the reply handed to the socket.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from poolpilot_lab.bench.cost.pages import BASE_MODEL
from poolpilot_lab.bench.cost.tools import ProbeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL_DUPLEX: Final = 4
_BODIES: Final = 512
_BODY_BYTES: Final = 1_000
_WORDS: Final = ("sea", "wind", "stone", "river", "cloud", "ember", "field", "harbour", "lantern", "meadow")


def spec(port: int, endpoint: str, rate: float, requests: int, seed: int) -> ProbeSpec:
    """Short chats that nobody sent before, answered by `endpoint`."""
    rng = random.Random(seed)
    head, response, answer = (ext_proc.ProcessingRequest() for _ in range(3))
    head.protocol_config.request_body_mode = head.protocol_config.response_body_mode = _FULL_DUPLEX
    fields = {
        ":authority": "bench", ":path": "/v1/chat/completions", ":method": "POST", ":scheme": "http",
        "user-agent": "bench", "content-type": "application/json", "content-length": str(_BODY_BYTES),
        "x-forwarded-proto": "http", "x-request-id": f"{rng.getrandbits(128):032x}",
    }  # fmt: skip
    _fill(head.request_headers, fields)
    _fill(response.response_headers, {":status": "200", "content-type": "application/json", "content-length": "600"})
    attributes = response.attributes["envoy.filters.http.ext_proc"]
    attributes["response.code_details"] = "via_upstream"
    attributes["upstream.address"] = endpoint
    attributes["upstream.request_attempt_count"] = 1
    usage = {"prompt_tokens": 200, "completion_tokens": 40, "total_tokens": 240}
    answer.response_body.body = msgspec.json.encode({"choices": [], "usage": usage})
    answer.response_body.end_of_stream = True
    return ProbeSpec(
        target=f"127.0.0.1:{port}",
        rate=rate,
        requests=requests,
        seed=seed,
        head=head.SerializeToString(),
        bodies=[_body(rng) for _ in range(_BODIES)],
        tail=[response.SerializeToString(), answer.SerializeToString()],
    )


def _fill(part: Any, fields: Mapping[str, str]) -> None:
    for key, value in fields.items():
        part.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))


def _body(rng: random.Random) -> bytes:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < _BODY_BYTES - 120:
        words.append(rng.choice(_WORDS) + str(rng.randrange(1_000)))
    message = ext_proc.ProcessingRequest()
    chat = {"model": BASE_MODEL, "max_tokens": 40, "messages": [{"role": "user", "content": " ".join(words)}]}
    message.request_body.body = msgspec.json.encode(chat)
    message.request_body.end_of_stream = True
    serialized: bytes = message.SerializeToString()
    return serialized

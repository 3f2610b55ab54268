"""Headers and bodies → InferenceRequest; names of headers. Pure: no clock, no I/O; nothing raises but BadRequest.

In the order of a request's way::

    head = read_head(pairs)  # (lower-case name, str | bytes); new_id= makes a missing request id
    body_use(head, end_of_stream=...)  # BodyUse.NONE | UNSEEN | INFERENCE | OPAQUE
    request = parse(head, body, complete=True)  # InferenceRequest, or BadRequest

* NONE: no body comes: `parse(head, b"")` and pick in the answer to the headers.
* UNSEEN (upgrade, CONNECT, gRPC): the same, and that answer must override the body mode to NONE, or it all hangs.
* INFERENCE: `parse` with the whole body (join the chunks once), or with its beginning and `complete=False`.
* OPAQUE: pick when the body, or its beginning, is there; `parse` reads the model where it can and refuses nothing.

`parse(..., target_of=, token_scale=)`: the rewrite of a model (it wins over the header), and the learned factor on the
text tokens of a target model. The factor is learned from `usage`: its prompt tokens are
`request.text_tokens × factor + request.fixed_tokens`.

`request.prefix` is a `PrefixChain`: `hashes`, and `covered(k)` = estimated tokens of the first k blocks.

`rewrite_model(body, new_model)` and `limit_tokens(body, kind, most)` splice a whole body. `error_body(refused)` is the
OpenAI error object to answer with.
`UsageReader(streamed=...)` with `feed(chunk)`, `finish()`, `usage`, `events`, `first_token_seen` reads a response.
"""

from poolpilot_picker.requests.head import BodyUse, RequestHead, body_use, new_request_id, read_head
from poolpilot_picker.requests.parsing import parse
from poolpilot_picker.requests.refusals import error_body
from poolpilot_picker.requests.request import NO_PREFIX, InferenceRequest, PrefixChain, RequestKind
from poolpilot_picker.requests.rules import NO_RULES, ModelTargets, PoolRules, Rewritten
from poolpilot_picker.requests.splice import limit_tokens, rewrite_model
from poolpilot_picker.requests.tokens import estimate, text_units
from poolpilot_picker.requests.usage import Usage, UsageReader, usage_of

__all__ = [
    "NO_PREFIX",
    "NO_RULES",
    "BodyUse",
    "InferenceRequest",
    "ModelTargets",
    "PoolRules",
    "PrefixChain",
    "RequestHead",
    "RequestKind",
    "Rewritten",
    "Usage",
    "UsageReader",
    "body_use",
    "error_body",
    "estimate",
    "limit_tokens",
    "new_request_id",
    "parse",
    "read_head",
    "rewrite_model",
    "text_units",
    "usage_of",
]

"""A receipt as one response header: what the client asked for, cut to what HTTP clients take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poolpilot_picker.extproc.replies import NO_MUTATION, Mutation
from poolpilot_picker.requests import headers as names

if TYPE_CHECKING:
    from poolpilot_picker.flow.pool import Placement
    from poolpilot_picker.flow.receipts import Receipt

MOST_BYTES: Final = 8_000
"""Node.js takes 16 KiB for all headers together."""
_NAME_CHARACTERS: Final = 200
_FALLBACKS: Final = 16


def receipt_mutation(placement: Placement) -> Mutation:
    """Sets the receipt header, if the client asked for it."""
    if placement.receipt is None or not placement.request.receipt_wanted:
        return NO_MUTATION
    return Mutation(set_headers=((names.RECEIPT, receipt_text(placement.receipt)),))


def receipt_text(receipt: Receipt, limit: int = MOST_BYTES) -> str:
    """JSON in ASCII, at most `limit` characters: the chosen endpoint first, and `omitted` = candidates left out."""
    fields: dict[str, Any] = msgspec.to_builtins(receipt)
    for name in ("request_id", "model", "target_model"):
        fields[name] = fields[name][:_NAME_CHARACTERS]
    fields["fallbacks"] = receipt.fallbacks[:_FALLBACKS]
    listed = [receipt.chosen, *receipt.fallbacks]
    rank = {address: place for place, address in enumerate(listed)}
    every = sorted(fields["candidates"], key=lambda one: rank.get(one["endpoint"], len(listed)))
    fields["candidates"] = kept = []
    fields["omitted"] = len(every)
    room = limit - len(_ascii(fields))
    for candidate in every:
        room -= len(_ascii(candidate)) + 1
        if room < 0:
            break
        kept.append(candidate)
    fields["omitted"] -= len(kept)
    return _ascii(fields)


def _ascii(value: object) -> str:
    # Header values are not the place for UTF-8; JSON's own escapes are understood by every reader.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))

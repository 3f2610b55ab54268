"""Dynamic metadata → the addresses that the data plane allows. Read by the exchange before a request is placed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolpilot_picker.requests import headers as names

if TYPE_CHECKING:
    from poolpilot_picker.extproc.answered import Metadata


def subset_hint(metadata: Metadata) -> tuple[str, ...] | None:
    """Entries of the subset hint, None where the key is not set (or null): then every endpoint is allowed.

    A list of texts, as the protocol has it, or one comma-separated text. What is neither names no endpoint, and a set
    key that names none allows none (protocol, specification rules): a constraint that cannot be read is not ignored.
    """
    value = metadata.get(names.SUBSET_NAMESPACE, {}).get(names.SUBSET)
    if value is None:
        return None
    entries = value if isinstance(value, list) else [value]
    texts = [entry for entry in entries if isinstance(entry, str)]
    return tuple(address for text in texts for part in text.split(",") if (address := part.strip()))

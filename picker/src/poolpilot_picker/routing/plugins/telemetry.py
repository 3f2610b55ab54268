"""What load scorers and filters read from the table, with an answer for endpoints that were not heard from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Floats, Mask


def known_mask(view: DecisionView, column: Floats) -> Mask:
    """Slots whose newest sample is fresh and has this gauge."""
    stale = view.load.unknown & ~np.isnan(view.table.running)
    return ~np.isnan(column) & ~stale


def known_or_peers(view: DecisionView, column: Floats) -> Floats:
    """A gauge per slot; where it is missing or stale, the median of the candidates that have it, 0 where none has.

    llm-d reads missing as 0, which makes an endpoint that was never heard from look idle and draws all traffic to it.
    """
    known = known_mask(view, column)
    if known.all():
        return column
    peers = column[known & view.mask]
    return np.where(known, column, np.median(peers) if len(peers) else 0.0)


def inflight_tokens(view: DecisionView) -> Floats:
    """Uncached prompt tokens that we placed and whose first token was not seen, per slot: llm-d's in-flight tokens."""
    return view.table.uncached_tokens


def prefix_ratio(view: DecisionView) -> Floats:
    """Share of the prompt's blocks predicted to be in each endpoint's cache, 0..1; 0 without blocks."""
    chain = view.request.prefix
    total = chain.covered(len(chain.hashes))
    if total <= 0:
        return np.zeros(len(view.cached_tokens))
    return np.minimum(view.cached_tokens / total, 1.0)

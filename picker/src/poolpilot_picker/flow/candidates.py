"""Who may be chosen at all, before the policy speaks: wanted, allowed by the subset hint, serving the model.

Only the hint can leave nobody. What we believe of an endpoint steers: where it would leave nobody, all stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poolpilot_picker.errors import NoEndpoints

if TYPE_CHECKING:
    from poolpilot_picker.requests.request import InferenceRequest
    from poolpilot_picker.routing.view import DecisionView
    from poolpilot_picker.state.endpoints import Endpoint, EndpointTable, Mask


def candidates(table: EndpointTable, request: InferenceRequest) -> Mask:
    """Slots that are wanted and that the request's subset hint allows, a copy.

    Raises:
        NoEndpoints: there is none.
    """
    mask: Mask = table.eligible.copy()
    if request.subset is not None:
        allowed = np.zeros(len(table), dtype=np.bool_)
        for hint in request.subset:
            for endpoint in _hinted(table, hint):
                allowed[endpoint.slot] = True
        mask &= allowed
    if not table.any_wanted or (request.subset is not None and not mask.any()):
        raise NoEndpoints("failed to find endpoint candidates for serving the request")
    return mask


def _hinted(table: EndpointTable, hint: str) -> list[Endpoint]:
    """Endpoints that one entry of a subset hint allows: `ip:port` exactly, a bare address with every port."""
    exact = table.find(hint)
    if exact is not None:
        return [exact]
    host = hint.strip("[]")
    return [endpoint for endpoint in table.wanted() if endpoint.spec.host == host]


def steer(view: DecisionView) -> None:
    """Leaves the endpoints that serve the model, of these the ones whose KV cache can hold the prompt."""
    model, table = view.request.target_model, view.table
    serving = view.adapters.serving(model) if model else None
    if serving is not None:
        _keep(view, serving, "does not serve the model")
    tokens = view.request.prompt_tokens
    if not table.columns.all_hold(tokens):
        _keep(view, table.kv_tokens >= tokens, "its KV cache is smaller than the prompt")
    if view.request.only_if_cached:
        _keep(view, view.cached_tokens > 0, "holds nothing of the prefix")


def _keep(view: DecisionView, kept: Mask, because: str) -> None:
    if (view.mask & kept).any():
        view.keep(kept, because)

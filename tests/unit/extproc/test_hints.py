"""Subset hints as data planes write them."""

from __future__ import annotations

import pytest

from poolpilot_picker.extproc.hints import subset_hint


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (["10.0.0.1:8000", "10.0.0.2:8000"], ("10.0.0.1:8000", "10.0.0.2:8000")),
        ("10.0.0.1:8000", ("10.0.0.1:8000",)),
        (" 10.0.0.1:8000 ,10.0.0.2:8000,, ", ("10.0.0.1:8000", "10.0.0.2:8000")),
        (["10.0.0.1:8000, 10.0.0.2:8000"], ("10.0.0.1:8000", "10.0.0.2:8000")),
        (["[fd00::1]:8000", 5.0, None, {"x": 1.0}, ["y"], True], ("[fd00::1]:8000",)),
        ([], ()),
        ("", ()),
        (12.0, ()),
        ({"10.0.0.1:8000": True}, ()),
        (None, None),
    ],
)
def test_entries(value: object, entries: tuple[str, ...] | None) -> None:
    assert subset_hint({"envoy.lb.subset_hint": {"x-gateway-destination-endpoint-subset": value}}) == entries


@pytest.mark.parametrize("metadata", [{}, {"envoy.lb": {}}, {"envoy.lb.subset_hint": {}}])
def test_no_hint(metadata: dict[str, dict[str, object]]) -> None:
    assert subset_hint(metadata) is None

"""Runs modules that ask for it with the compiled core and with its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from poolpilot_picker import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=["compiled", "reference"])
def both_cores(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is made in the module's tests decides with the one, then with the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "in_force", compiled.load() if request.param == "compiled" else None)
        yield

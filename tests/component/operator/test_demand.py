"""Demand for models, from the pages of picker pods: rates, not counts, and no jump when a pod begins anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from poolpilot_kube.objects import ObjectMeta, Pod, PodStatus
from poolpilot_operator.lora.demand import EVERY_S, Demand

if TYPE_CHECKING:
    from stand_in_pickers import PickerPods

pytestmark = pytest.mark.asyncio(loop_scope="module")


def page(**counts: float) -> str:
    """As a picker writes it, two priorities of each model."""
    lines = ["# TYPE llm_d_epp_request_total counter"]
    for model, count in counts.items():
        for priority in ("0", "1"):
            labels = f'fairness_id="",model_name="asked",priority="{priority}",target_model_name="{model}"'
            lines.append(f"llm_d_epp_request_total{{{labels}}} {count / 2}")
    lines.append('llm_d_epp_request_error_total{target_model_name="hot"} 1e9')
    return "\n".join(lines) + "\n"


async def test_rates_of_models_over_all_pods(pods: PickerPods) -> None:
    made = [await pods.started(name) for name in ("picker-a", "picker-b")]
    known = [Pod(ObjectMeta(name=one.name, uid=one.name), PodStatus(pod_ip="127.0.0.1")) for one in made]
    now = 1000.0
    demand = Demand(lambda: known, pods.url_of, lambda: now)
    first, second = made
    first.page, second.page = page(hot=100_000, cold=5), page(hot=50)
    try:
        # What was counted before tells nothing of now.
        assert await demand.rates() == {}
        now += 1.0
        first.page = page(hot=200_000)
        assert await demand.rates() == {}
        now += EVERY_S * 100 - 1.0
        first.page, second.page = page(hot=100_000 + 6000, cold=5), page(hot=50 + 3000)
        rates = await demand.rates()
        assert rates["hot"] == pytest.approx(3.0, rel=0.01)
        assert "cold" not in rates
        # One pod began anew, the other does not answer.
        now += EVERY_S * 100
        first.page, second.refuses = page(hot=3000), True
        assert (await demand.rates())["hot"] == pytest.approx(1.0, rel=0.02)
        # Nobody asks any more: it is forgotten by and by.
        now += 300.0
        assert (await demand.rates())["hot"] == pytest.approx(0.5, rel=0.02)
    finally:
        await demand.close()

"""docs/flow-control.md says what is: its configurations load, and what it names exists."""

from __future__ import annotations

import random
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from exchange_desk import Chosen, spec_of
from flow_stage import Client
from poolpilot_picker.config.flow_plugins import FLOW_TYPES
from poolpilot_picker.config.load import load
from poolpilot_picker.config.settings import FlowControlSettings, TenantSettings
from poolpilot_picker.config_use import flow_settings
from poolpilot_picker.flow.control import FlowControl
from poolpilot_picker.flow.holding import QueueOutcome
from poolpilot_picker.flow.pool import Placement, Pool
from poolpilot_picker.flow.queue import OVERDUE_TURN
from poolpilot_picker.instruments.flow_metrics import FlowMetrics
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests.request import InferenceRequest, RequestKind
from poolpilot_picker.routing.registry import build_profile, default_registry

PAGE = (Path(__file__).parents[3] / "docs/flow-control.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.mark.parametrize("text", BLOCKS)
def test_the_configurations_run(text):
    config = load(text, default_registry(), "example")
    assert config.warnings == ()
    FlowControl(Pool("p", Chosen(), random.Random(1)), flow_settings(config, random.random))


def test_the_partition_by_label_holds_whatever_room_there_is():
    """A long prompt waits for the pods with long prompts; short ones never go there."""
    [text] = [block for block in BLOCKS if "context-length-aware" in block]
    config = load(text, default_registry())
    pool = Pool("p", build_profile(config), random.Random(1))
    ranges = ("0-4096", "0-4096", "4097-131072")
    pool.apply_endpoints(
        msgspec.structs.replace(spec_of(f"10.0.0.{number}:8000"), labels={"llm-d.ai/context-length-range": lengths})
        for number, lengths in enumerate(ranges)
    )
    flow = pool.flow = FlowControl(pool, flow_settings(config, random.random))

    def slot(tokens: int) -> int | None:
        kind = RequestKind.CHAT
        request = InferenceRequest(request_id="r", kind=kind, model="m", target_model="m", prompt_tokens=tokens)
        client = Client()
        found = flow.submit(request, client, 1_000.0)
        flow.advance(1_000.0)
        placement = found if isinstance(found, Placement) else client.placement
        return placement.booking.endpoint.slot if placement is not None else None

    for _ in range(30):
        assert slot(100) in {0, 1}
    assert slot(30_000) == 2
    assert slot(30_000) is None, "two endpoints have room, which is not for it"
    assert slot(100) in {0, 1}


def test_there_are_three_worked_ones():
    assert len(BLOCKS) == 5


def test_every_policy_setting_and_outcome_is_named():
    words = set(re.findall(r"[A-Za-z-]+", PAGE))
    assert {each.name for each in FLOW_TYPES} <= words
    fields = (*msgspec.structs.fields(FlowControlSettings), *msgspec.structs.fields(TenantSettings))
    assert {field.encode_name for field in fields} <= words
    assert {str(outcome) for outcome in QueueOutcome} <= words
    assert f"within {OVERDUE_TURN} · (m + 1) dispatches" in PAGE.replace("\n", " ")


def test_every_metric_is_named():
    metrics = FlowMetrics(PickerMetrics(CollectorRegistry()), "pool", lambda: 0.0)
    names = {family.name for family in metrics.collect()}
    names |= {
        family.name
        for part in (metrics._duration, metrics._size, metrics._bytes, metrics._requests, metrics._overdue)
        for family in part.collect()
    }
    for name in names:
        short = name.removeprefix("llm_d_epp_flow_control")
        assert any(name in code or short in code for code in CODE) or "global_" in name or "_bytes" in name, name

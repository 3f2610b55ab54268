"""The YAML users get: equal to the configuration, with comments where they are due."""

from __future__ import annotations

import pytest
import yaml

from poolpilot_picker.envoy import render
from poolpilot_picker.envoy.config import bootstrap
from poolpilot_picker.envoy.settings import (
    Baseline,
    BodyMode,
    EnvoySettings,
    FailureMode,
    HostPort,
    PoolCluster,
)

VARIANTS = [
    EnvoySettings(),
    EnvoySettings(fail=FailureMode.OPEN, body_mode=BodyMode.BUFFERED, access_log="stdout"),
    EnvoySettings(body_mode=BodyMode.FULL_DUPLEX, picker_tls=True),
    EnvoySettings(cluster=PoolCluster.ORIGINAL_DST, admin=None),
    EnvoySettings(baseline=Baseline.ROUND_ROBIN, endpoints=(HostPort("::1", 8000),)),
    EnvoySettings(baseline=Baseline.LEAST_REQUEST, endpoints=(HostPort("pods.example", 8000),)),
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_the_yaml_reads_back_equal(settings: EnvoySettings) -> None:
    config = bootstrap(settings)
    assert yaml.safe_load(render.to_yaml(settings, config)) == config


@pytest.mark.parametrize("settings", VARIANTS)
def test_every_comment_finds_its_line_once(settings: EnvoySettings) -> None:
    text = render.to_yaml(settings, bootstrap(settings))
    for key, comment in render._comments(settings).items():
        lines = [line for line in text.splitlines() if line.endswith(f"  # {comment}")]
        assert len(lines) == 1, key
        assert lines[0].strip().removeprefix("- ").startswith(key.rsplit(".", 1)[-1] + ":")


def test_the_heading_says_what_it_is() -> None:
    text = render.to_yaml(VARIANTS[0], bootstrap(VARIANTS[0]))
    assert text.startswith("# Envoy asks the picker at 127.0.0.1 port 9002")
    assert "fails close" in text.splitlines()[1]

"""Reading `host:port`: what is an address and what is a mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.envoy.settings import HostPort
from poolpilot_picker.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "host", "port", "literal"),
    [
        ("10.0.0.1:8000", "10.0.0.1", 8000, True),
        ("[::1]:8000", "::1", 8000, True),
        ("picker.default.svc.cluster.local:9002", "picker.default.svc.cluster.local", 9002, False),
        ("picker.:9002", "picker.", 9002, False),
        ("localhost:1", "localhost", 1, False),
        ("a_b:65535", "a_b", 65535, False),
    ],
)
def test_addresses(text: str, host: str, port: int, literal: bool) -> None:
    address = HostPort.parse(text, "picker")
    assert (address.host, address.port, address.is_ip) == (host, port, literal)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "host", "host:", ":80", "::1:80", "[::1]", "[::1]80", "[1.2.3.4]:80", "[zz::]:80", "1.2.3:80",
        "1.2.3.400:80", "a b:80", "-a:80", "a..b:80", "host:0", "host:65536", "host:8o", "host:+80", "host:８０", "http://a:80",
        "a/b:80",
    ],
)  # fmt: skip
def test_mistakes_name_the_field_and_the_value(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        HostPort.parse(text, "picker")
    [problem] = raised.value.problems
    assert problem.startswith("picker: ") and text in problem


@given(st.text())
def test_any_text_is_an_address_or_a_configuration_error(text: str) -> None:
    try:
        address = HostPort.parse(text, "x")
    except ConfigurationError:
        return
    assert address.host and 0 < address.port < 65536

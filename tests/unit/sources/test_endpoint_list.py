"""Endpoints from a flag and from YAML: what is taken, and what each refusal says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.endpoint_list import parse_endpoint_file, parse_endpoint_flag
from poolpilot_picker.state.endpoints import EndpointSpec

NOT_RESOLVED = "host names are not resolved, because the gateway is told an address to send to"
ENGINES = ("vllm", "sglang", "triton")


def parse(text: str) -> list[EndpointSpec]:
    return parse_endpoint_file(text, engines=ENGINES, where="pool.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as error:
        parse(text)
    return list(error.value.problems)


def test_a_flag():
    assert parse_endpoint_flag("10.0.0.1:8000, [fd00:0::1]:80,127.0.0.1:65535", engine="sglang") == [
        EndpointSpec(host="10.0.0.1", port=8000, engine="sglang"),
        EndpointSpec(host="fd00::1", port=80, engine="sglang"),
        EndpointSpec(host="127.0.0.1", port=65535, engine="sglang"),
    ]
    assert parse_endpoint_flag("[::1]:80")[0].address == "[::1]:80"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--endpoints: '' is not ip:port"),
        ("10.0.0.1", "--endpoints: '10.0.0.1' is not ip:port"),
        ("10.0.0.1:", "--endpoints: '' is not a port; 1 to 65535 is allowed"),
        ("10.0.0.1:0", "--endpoints: '0' is not a port; 1 to 65535 is allowed"),
        ("10.0.0.1:65536", "--endpoints: '65536' is not a port; 1 to 65535 is allowed"),
        ("10.0.0.1:+80", "--endpoints: '+80' is not a port; 1 to 65535 is allowed"),
        ("10.0.0.1:٣", "--endpoints: '٣' is not a port; 1 to 65535 is allowed"),
        (
            "fd00::1:80",
            "--endpoints: 'fd00::1:80' is not ip:port; an IPv6 address needs brackets, as in [fd00::1]:8000",
        ),
        ("[fd00::1", "--endpoints: '[fd00::1' is not ip:port; an IPv6 address needs brackets, as in [fd00::1]:8000"),
        (
            "vllm.default.svc:8000",
            "--endpoints: 'vllm.default.svc' is not an IP address; " + NOT_RESOLVED,
        ),
        ("0.0.0.0:80", "--endpoints: '0.0.0.0' is not the address of one host"),
        ("[ff02::1]:80", "--endpoints: 'ff02::1' is not the address of one host"),
        ("[fe80::1%eth0]:80", "--endpoints: 'fe80::1%eth0' has a zone; an address that holds on every host is needed"),
        (
            "10.0.0.1:80,10.0.0.2:80,10.0.0.1:80",
            "--endpoints: endpoint 3 is 10.0.0.1:80 again, first at --endpoints: endpoint 1",
        ),
    ],
)
def test_bad_flags(text, message):
    with pytest.raises(ConfigurationError) as error:
        parse_endpoint_flag(text)
    assert str(error.value) == message


def test_every_problem_of_a_flag_is_told():
    with pytest.raises(ConfigurationError) as error:
        parse_endpoint_flag("a:1,10.0.0.1:x,10.0.0.2:1")
    assert len(error.value.problems) == 2


def test_a_file():
    assert parse(
        """
# two engines
endpoints:
- address: 10.0.0.1
  port: 8000
  name: h100-a
  uid: 3c1d
  labels: {gpu: H100, "zone": "1"}
  engine: sglang
- {name: ep1, address: 127.0.1.1, port: "8000"}
- {address: "fd00:0:0::1", port: 8001, labels: {llm-d.ai/engine-type: triton}}
- {address: 10.0.0.1, port: 8001, uid: 3c1d}
"""
    ) == [
        EndpointSpec(
            host="10.0.0.1", port=8000, name="h100-a", uid="3c1d", labels={"gpu": "H100", "zone": "1"}, engine="sglang"
        ),
        EndpointSpec(host="127.0.1.1", port=8000, name="ep1"),
        EndpointSpec(host="fd00::1", port=8001, labels={"llm-d.ai/engine-type": "triton"}, engine="triton"),
        EndpointSpec(host="10.0.0.1", port=8001, uid="3c1d"),
    ]


def test_json_is_yaml():
    assert parse('{"endpoints": [{"address": "10.0.0.1", "port": 8000}]}') == [EndpointSpec(host="10.0.0.1", port=8000)]


def test_an_empty_list_has_to_be_written():
    assert parse("endpoints: []") == []
    for text in ("", "# only a comment\n", "---\n", "null"):
        assert "`endpoints:" in problems(text)[0] or "mapping is needed" in problems(text)[0]
    assert problems("endpoints:\n") == ["pool.yaml:1: endpoints is empty; a list is needed (`endpoints: []` for none)"]
    assert problems("{}") == [
        "pool.yaml:1: `endpoints` is missing; a list of endpoints is needed (`endpoints: []` for none)"
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{address: 10.0.0.1}", "2: endpoints[0].port is missing"),
        ("{port: 80}", "2: endpoints[0].address is missing"),
        ("{address: 10.0.0.1, port: 80, weight: 3}",
         "2: endpoints[0] has the unknown key 'weight'; address, port, name, uid, labels, engine are allowed"),
        ("{address: 10.0.0.1, address: 10.0.0.2, port: 80}", "2: endpoints[0] has 'address' twice"),
        ("{address: 10.0.0.1, port: 0}", "2: endpoints[0].port: '0' is not a port; 1 to 65535 is allowed"),
        ("{address: 10.0.0.1, port: 8e3}", "2: endpoints[0].port: '8e3' is not a port; 1 to 65535 is allowed"),
        ("{address: 10.0.0.1, port: [80]}", "2: endpoints[0].port is a list; a single value is needed"),
        ("{address: engine-0, port: 80}",
         "2: endpoints[0].address: 'engine-0' is not an IP address; " + NOT_RESOLVED),
        ("{address: 10.0.0.1, port: 80, engine: vlm}",
         "2: endpoints[0].engine is 'vlm'; one of sglang, triton, vllm is allowed"),
        ("{address: 10.0.0.1, port: 80, labels: {llm-d.ai/engine-type: vlm}}",
         "2: endpoints[0].labels[llm-d.ai/engine-type] is 'vlm'; one of sglang, triton, vllm is allowed"),
        ("{address: 10.0.0.1, port: 80, labels: {zone: 1}}",
         "2: endpoints[0].labels[zone] is '1'; text is needed (put it in quotes)"),
        ("{address: 10.0.0.1, port: 80, labels: [a]}", "2: endpoints[0].labels is a list; a mapping is needed"),
        ("{address: 10.0.0.1, port: 80, uid: 5}", "2: endpoints[0].uid is '5'; text is needed (put it in quotes)"),
        ("{address: 10.0.0.1, port: 80, name: yes}",
         "2: endpoints[0].name is 'yes'; text is needed (put it in quotes)"),
        ("10.0.0.1:80", "2: endpoints[0] is '10.0.0.1:80'; a mapping is needed"),
        ("{address: 10.0.0.1, port: 80}\n- {address: 10.0.0.1, port: 80, uid: other}",
         "3: endpoints[1] is 10.0.0.1:80 again, first at pool.yaml:2: endpoints[0]"),
        ("{address: 10.0.0.1, port: 80, uid: u}\n- {address: 10.0.0.2, port: 80, uid: u}",
         "3: endpoints[1] has uid 'u' and port 80 again, first at pool.yaml:2: endpoints[0]"),
    ],
)  # fmt: skip
def test_bad_entries_name_line_key_value_and_what_is_allowed(entry, expected):
    assert problems(f"endpoints:\n- {entry}\n") == [f"pool.yaml:{expected}"]


def test_a_thousand_problems_are_not_all_told():
    found = problems("a: &a {address: 10.0.0.1, port: 80}\nendpoints: [" + "*a, " * 1_000 + "]\n")
    assert len(found) == 21
    assert found[-1] == "and 980 more problems"


def test_every_problem_of_a_file_is_told():
    found = problems("endpoints:\n- {address: x, port: y}\n- {adress: 10.0.0.1}\nextra: 1\n")
    assert [line.split(": ")[0] for line in found] == [
        "pool.yaml:4",
        "pool.yaml:2",
        "pool.yaml:2",
        "pool.yaml:3",
        "pool.yaml:3",
        "pool.yaml:3",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoints: [", "pool.yaml:1: not YAML:"),
        ("endpoints:\n- {address: 10.0.0.1\n", "pool.yaml:3: not YAML:"),
        ("a: &x [*x]\n*x", "pool.yaml:2: not YAML:"),
        ("endpoints: []\n---\nendpoints: []\n", "pool.yaml:2: not YAML: but found another document"),
        ("- a", "pool.yaml:1: the file is a list; a mapping is needed"),
        ("\x00", "pool.yaml"),
        ("endpoints: !!python/object:os.system []", "pool.yaml:1: endpoints is a tag:yaml.org,2002:python/object:os"),
        ("endpoints: !mine []", "pool.yaml:1: endpoints is a !mine; a list is needed"),
        ("endpoints: " + "[" * 5_000, "pool.yaml: not YAML:"),
    ],
)
def test_what_is_no_yaml_of_ours(text, message):
    assert problems(text)[0].startswith(message)


@given(st.text(max_size=200) | st.text(alphabet="endpoints:[]{}-, \n&*!|>'\"10.", max_size=120))
def test_any_text_is_a_list_or_a_clear_error(text):
    try:
        parsed = parse(text)
    except ConfigurationError as error:
        parsed = []
        told = all(problem.startswith("pool.yaml") for problem in error.problems) and bool(error.problems)
        assert told
    assert isinstance(parsed, list)


def test_an_address_mapped_into_ipv6_is_the_address_it_stands_for() -> None:
    [spec] = parse_endpoint_flag("[::ffff:10.0.0.1]:80")
    assert spec.address == "10.0.0.1:80"
    with pytest.raises(ConfigurationError, match="again"):
        parse_endpoint_flag("10.0.0.1:80,[::ffff:10.0.0.1]:80")

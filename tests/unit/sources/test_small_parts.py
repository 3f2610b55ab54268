"""Cadence, restart detection, model lists, credentials, ORCA headers."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.cadence import Cadence, Plan
from poolpilot_picker.sources.credentials import BearerToken
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.orca import parse_orca
from poolpilot_picker.sources.restart import RestartDetector
from poolpilot_picker.sources.served_models import parse_served_models
from poolpilot_picker.state.samples import EngineSample, ServedModels

STEADY = Cadence(jitter=0.0)


def plan(cadence=STEADY, now=0.0) -> Plan:
    return Plan(cadence, now, random.Random(1))


def test_the_first_read_is_due_at_once_and_the_next_after_the_pause():
    first = plan(now=100.0)
    assert first.due_ms == 100.0
    first.begin()
    first.succeeded(100.0, 200.0)
    assert first.due_ms == 300.0


def test_failures_back_off_to_a_bound_and_recovery_forgets_them():
    failing = plan()
    pauses = []
    for number in range(8):
        failing.begin()
        assert failing.failed(float(number), 1_000.0) == 0.0
        pauses.append(failing.due_ms - 1_000.0)
    assert pauses == [250.0, 500.0, 1_000.0, 2_000.0, 3_000.0, 3_000.0, 3_000.0, 3_000.0]
    failing.begin()
    failing.succeeded(2_000.0, 200.0)
    assert failing.failing_since_ms is None
    failing.begin()
    assert failing.failed(3_000.0, 3_000.0) == 3_000.0
    assert failing.due_ms == 3_250.0


def test_many_failures_do_not_overflow():
    failing = plan()
    for _ in range(5_000):
        failing.failed(0.0, 0.0)
    assert failing.due_ms == 3_000.0


def test_hasten_brings_a_read_forward_never_back_and_not_while_failing():
    hastened = plan()
    hastened.begin()
    hastened.succeeded(0.0, 1_000.0)
    hastened.hasten(5_000.0)
    assert hastened.due_ms == 1_000.0
    hastened.hasten(300.0)
    assert hastened.due_ms == 300.0
    hastened.failed(300.0, 300.0)
    hastened.hasten(310.0)
    assert hastened.due_ms == 550.0


def test_hasten_while_reading_counts_afterwards():
    busy = plan()
    busy.begin()
    busy.hasten(10.0)
    assert busy.due_ms == 0.0
    busy.succeeded(0.0, 1_000.0)
    assert busy.due_ms == 10.0


@given(st.floats(0, 0.5), st.integers(0, 2**32))
def test_jitter_stays_in_its_bounds(jitter, seed):
    jittered = Plan(Cadence(jitter=jitter), 0.0, random.Random(seed))
    jittered.succeeded(0.0, 1_000.0)
    assert 1_000.0 * (1 - jitter) <= jittered.due_ms <= 1_000.0 * (1 + jitter)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fast_ms": 0.0}, "telemetry cadence: fast_ms is 0.0; at least 1 ms is allowed"),
        ({"models_ms": float("nan")}, "telemetry cadence: models_ms is nan; at least 1 ms is allowed"),
        ({"jitter": 0.9}, "telemetry cadence: jitter is 0.9; 0 to 0.5 is allowed"),
        ({"slow_ms": 100.0}, "telemetry cadence: slow_ms is 100.0; at least fast_ms (200.0) is allowed"),
    ],
)
def test_cadences_that_cannot_be(fields, message):
    with pytest.raises(ConfigurationError, match=r".*") as error:
        Cadence(**fields)
    assert str(error.value) == message


def sample(**fields) -> EngineSample:
    return EngineSample(taken_ms=0.0, **fields)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (sample(prompt_tokens=10.0), sample(prompt_tokens=9.0), True),
        (sample(prompt_tokens=10.0), sample(prompt_tokens=10.0), False),
        (sample(prompt_tokens=10.0), sample(prompt_tokens=11.0), False),
        (sample(prompt_tokens=10.0), sample(), False),
        (sample(), sample(prompt_tokens=1.0), False),
        (sample(preemptions=1.0), sample(preemptions=0.0), True),
        (sample(started_unix_s=100.0), sample(started_unix_s=160.0), True),
        (sample(started_unix_s=100.0), sample(started_unix_s=40.0), True),
        (sample(started_unix_s=100.0), sample(started_unix_s=100.4), False),
        (sample(started_unix_s=100.0, generated_tokens=5.0), sample(started_unix_s=160.0, generated_tokens=9.0), True),
        (sample(running=5.0, kv_usage=0.9), sample(running=0.0, kv_usage=0.0), False),
    ],
)
def test_restarts(before, after, found):
    detector = RestartDetector()
    assert detector.observe(before) is None
    assert (detector.observe(after) is not None) == found
    assert detector.observe(after) is None


def test_a_restart_is_seen_across_readings_that_tell_less():
    detector = RestartDetector()
    detector.observe(sample(prompt_tokens=100.0, generated_tokens=10.0, started_unix_s=5.0))
    detector.observe(sample(generated_tokens=20.0))
    assert detector.observe(sample(prompt_tokens=50.0, generated_tokens=30.0)) == "prompt_tokens went from 100 to 50"
    assert detector.observe(sample(prompt_tokens=60.0, started_unix_s=900.0)) is None
    assert detector.observe(sample(started_unix_s=5.0)) == "start time moved by -895.0 s"


def test_one_restart_is_seen_once():
    detector = RestartDetector()
    detector.observe(sample(prompt_tokens=100.0, generated_tokens=10.0))
    assert detector.observe(sample(generated_tokens=1.0)) == "generated_tokens went from 10 to 1"
    assert detector.observe(sample(prompt_tokens=5.0, generated_tokens=2.0)) is None


def test_served_models():
    body = msgspec.json.encode(
        {
            "object": "list",
            "data": [
                {
                    "id": "llama",
                    "object": "model",
                    "parent": None,
                    "root": "/m",
                    "max_model_len": 8192,
                    "permission": [],
                },
                {"id": "alias", "max_model_len": 4096},
                {"id": "ad-a", "parent": "llama", "root": "/adapters/a"},
                {"id": "ad-b", "parent": "llama"},
            ],
        }
    )
    assert parse_served_models(body) == ServedModels(
        base=("llama", "alias"), adapters={"ad-a": "llama", "ad-b": "llama"}, max_model_len=8192
    )
    assert parse_served_models(b'{"data":[]}') == ServedModels()


@pytest.mark.parametrize(
    ("entry", "served"),
    [
        ({"id": "m", "parent": "", "max_model_len": 0}, ServedModels(base=("m",))),
        ({"id": "m", "parent": "m"}, ServedModels(base=("m",))),
        ({"id": "m", "parent": "None", "max_model_len": "None"}, ServedModels(base=("m",))),
        ({"id": "m", "parent": {"id": "x"}, "max_model_len": True}, ServedModels(base=("m",))),
        ({"id": "m", "max_model_len": "4096"}, ServedModels(base=("m",))),
        ({"id": "m", "max_model_len": 4096.0}, ServedModels(base=("m",), max_model_len=4096)),
        ({"id": "m", "max_model_len": 1e300}, ServedModels(base=("m",))),
        ({"id": "a", "parent": "m", "max_model_len": None}, ServedModels(adapters={"a": "m"})),
    ],
)
def test_entries_of_other_kinds_cost_no_model(entry, served):
    assert parse_served_models(msgspec.json.encode({"object": "list", "data": [entry]})) == served


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data":[{"parent":"x"}]}', b"<html>", b'{"data":"x"}', b'{"data":null}', b"\xff"]
)
def test_answers_that_are_no_list_of_models(body):
    with pytest.raises(FetchError) as error:
        parse_served_models(body)
    assert error.value.kind is ErrorKind.CONTENT


def test_token_from_the_environment():
    token = BearerToken(env="KEY", environ={"KEY": "s3cret"})
    assert token.header() == "Bearer s3cret"
    assert not token.reload()
    assert "s3cret" not in repr(token)
    assert "s3cret" not in str(token)


def test_token_from_a_file_that_changes(tmp_path):
    path = tmp_path / "token"
    path.write_text("first\n")
    token = BearerToken(file=path)
    assert token.header() == "Bearer first"
    assert not token.reload()
    path.write_text("the-second\n")
    assert token.reload()
    assert token.header() == "Bearer the-second"


def test_a_bad_new_token_file_keeps_the_old(tmp_path):
    path = tmp_path / "token"
    path.write_text("first")
    token = BearerToken(file=path)
    path.write_text("two words")
    assert not token.reload()
    path.unlink()
    assert not token.reload()
    assert token.header() == "Bearer first"
    path.write_text("second")
    assert token.reload()
    assert token.header() == "Bearer second"


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "ä", "a\rb", "\x00"])
def test_tokens_that_would_break_a_header_are_refused_without_being_told(text):
    with pytest.raises(ConfigurationError) as error:
        BearerToken(env="KEY", environ={"KEY": text})
    assert str(error.value) == (
        "bearer token: environment variable KEY must hold one token of printable ASCII characters without blanks"
    )


def test_token_sources(tmp_path):
    with pytest.raises(ConfigurationError, match="either a file or"):
        BearerToken()
    with pytest.raises(ConfigurationError, match="either a file or"):
        BearerToken(file=tmp_path / "x", env="Y")
    with pytest.raises(ConfigurationError, match="is not set"):
        BearerToken(env="Y", environ={})
    with pytest.raises(ConfigurationError, match="No such file"):
        BearerToken(file=tmp_path / "x")


def test_recorded_orca_headers():
    json_form = parse_orca('JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}', 7.0)
    text_form = parse_orca("TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0", 7.0)
    assert json_form == text_form == EngineSample(taken_ms=7.0, waiting=0.0, kv_usage=0.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3", (None, 3.0, 0.4)),
        ("TEXT named_metrics.kv_cache_utilization=0.4", (None, None, 0.4)),
        ('JSON {"named_metrics":{"num_requests_running":2,"num_requests_waiting":"1"}}', (2.0, 1.0, None)),
        ("text num_requests_waiting=3,junk,named_metrics.num_requests_running=NaN,=4", (None, 3.0, None)),
        ("TEXT named_metrics.kv_cache_usage_perc=1.5", (None, None, 1.0)),
        (b'JSON {"named_metrics":{"num_requests_running":true,"num_requests_waiting":4}}', (None, 4.0, None)),
    ],
)
def test_orca_values(value, expected):
    report = parse_orca(value, 1.0)
    assert report is not None
    assert (report.running, report.waiting, report.kv_usage) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "TEXT",
        "TEXT ",
        "BIN CAE=",
        "JSON",
        "JSON {",
        "JSON []",
        'JSON {"named_metrics":[]}',
        'JSON {"cpu_utilization":1}',
        "TEXT named_metrics.num_requests_waiting=-1",
        "named_metrics.num_requests_waiting=1",
        "TEXT " + "a=1," * 9_000,
    ],
)
def test_orca_values_that_report_nothing(value):
    assert parse_orca(value, 1.0) is None


@given(st.text(max_size=80) | st.text(alphabet='TEXTJSON {}":=,.named_metrics1', max_size=80) | st.binary(max_size=80))
def test_no_header_breaks_the_reader(value):
    parse_orca(value, 1.0)
    prefixed = b"JSON " + value if isinstance(value, bytes) else "JSON " + value
    parse_orca(prefixed, 1.0)

"""Metrics pages of several workers → one page that a scraper may trust: sums that never fall."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from poolpilot_picker.workers.metrics import MetricsBook


def text(requests: int, inflight: int, running: int | None = None, rss: float = 1.0) -> str:
    lines = [
        "# HELP llm_d_epp_request_total Requests",
        "# TYPE llm_d_epp_request_total counter",
        f'llm_d_epp_request_total{{model_name="a \\"b\\""}} {requests}',
        "# TYPE took histogram",
        f'took_bucket{{le="0.1"}} {requests}',
        f'took_bucket{{le="+Inf"}} {2 * requests}',
        f"took_count {2 * requests}",
        f"took_sum {0.5 * requests}",
        "# TYPE poolpilot_endpoint_inflight gauge",
        f'poolpilot_endpoint_inflight{{model_server_endpoint="x"}} {inflight}',
        "# TYPE llm_d_epp_extproc_streams_total counter",
        f'llm_d_epp_extproc_streams_total{{code="OK"}} {requests}',
        "# TYPE poolpilot_max_resident_bytes gauge",
        f"poolpilot_max_resident_bytes {rss}",
        "# TYPE poolpilot_endpoint_running gauge",
    ]
    if running is not None:
        lines.append(f'poolpilot_endpoint_running{{model_server_endpoint="x"}} {running}')
    return "\n".join(lines) + "\n"


STATES = [(0, True, 0), (1, True, 0)]


def samples(book: MetricsBook) -> dict[str, float]:
    """The page as a scraper reads it."""
    page = generate_latest(book).decode()  # type: ignore[arg-type]
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_sums_and_facts() -> None:
    book = MetricsBook()
    book.take({0: (10, text(3, 1, rss=5.0)), 1: (11, text(4, 2, running=7, rss=6.0))}, STATES)
    got = samples(book)
    assert got['llm_d_epp_request_total model_name=a "b"'] == 7
    assert (got["took_bucket le=0.1"], got["took_bucket le=+Inf"], got["took_count"], got["took_sum"]) == (
        7,
        14,
        14,
        3.5,
    )
    assert got["poolpilot_endpoint_inflight model_server_endpoint=x"] == 3
    assert got["poolpilot_endpoint_running model_server_endpoint=x"] == 7, "the one that knows it speaks for all"
    assert got["poolpilot_max_resident_bytes worker=0"] == 5 and got["poolpilot_max_resident_bytes worker=1"] == 6
    assert [got[f"poolpilot_worker_streams_total worker={worker}"] for worker in (0, 1)] == [3, 4]
    assert b"# EOF" in generate_openmetrics(book)  # type: ignore[arg-type]


def test_two_that_know_the_same_are_not_added() -> None:
    book = MetricsBook()
    book.take({0: (10, text(0, 0, running=7)), 1: (11, text(0, 0, running=8))}, STATES)
    assert samples(book)["poolpilot_endpoint_running model_server_endpoint=x"] == 7


def test_counters_do_not_fall_when_a_worker_dies_and_comes_back() -> None:
    book = MetricsBook()
    total = 'llm_d_epp_request_total model_name=a "b"'
    book.take({0: (10, text(100, 5)), 1: (11, text(50, 3))}, STATES)
    assert samples(book)[total] == 150
    book.take({0: (10, text(101, 6))}, [(0, True, 0), (1, False, 0)])
    got = samples(book)
    assert got[total] == 151 and got["took_count"] == 302
    assert got["poolpilot_endpoint_inflight model_server_endpoint=x"] == 6, "nothing is in flight at the dead"
    assert "poolpilot_max_resident_bytes worker=1" not in got and got["poolpilot_worker_up worker=1"] == 0
    book.take({0: (10, text(101, 0)), 1: (12, text(2, 0))}, [(0, True, 0), (1, True, 1)])
    got = samples(book)
    assert got[total] == 153 and got["took_count"] == 306
    assert got["poolpilot_worker_restarts_total worker=1"] == 1
    assert got["poolpilot_worker_streams_total worker=1"] == 2, "of this life"
    book.take({0: (10, text(101, 0)), 1: (13, text(1, 0))}, [(0, True, 0), (1, True, 2)])
    assert samples(book)[total] == 154


def test_a_page_that_is_missed_once_changes_nothing() -> None:
    book = MetricsBook()
    total = 'llm_d_epp_request_total model_name=a "b"'
    book.take({0: (10, text(1, 0)), 1: (11, text(1, 0))}, STATES)
    book.take({0: (10, text(1, 0))}, STATES)
    assert samples(book)[total] == 2
    book.take({0: (10, text(1, 0)), 1: (11, text(2, 0))}, STATES)
    assert samples(book)[total] == 3


def test_what_a_worker_holds_back_is_added_up_and_what_engines_say_is_not() -> None:
    def page(engines: int, held: int) -> str:
        lines = ["# TYPE poolpilot_pool_queue_size gauge"]
        lines += [
            f'poolpilot_pool_queue_size{{pool="x",at="{at}"}} {n}'
            for at, n in zip(("engines", "picker"), (engines, held), strict=True)
        ]
        return "\n".join(lines) + "\n"

    book = MetricsBook()
    book.take({0: (10, page(5, 2)), 1: (11, page(5, 3))}, STATES)
    got = samples(book)
    assert got["poolpilot_pool_queue_size at=engines pool=x"] == 5
    assert got["poolpilot_pool_queue_size at=picker pool=x"] == 5

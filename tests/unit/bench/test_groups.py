"""Medians, spreads, ratios, and whether they keep what was promised."""

import pytest

from cost_rows import go, row
from poolpilot_lab.bench.cost.bars import bars
from poolpilot_lab.bench.cost.groups import Replies, grouped, peer_of, ratio
from poolpilot_lab.bench.cost.tools import ProbeResult, Quantiles


def test_runs_of_one_contestant_are_one_group() -> None:
    groups = grouped([row(run=1), go(run=1), row(run=2, cpu_us_per_request=50.0), row(run=2, transport="grpc")])
    assert [(group.who, len(group.rows)) for group in groups] == [
        ("poolpilot wire", 2), ("gie-epp", 1), ("poolpilot grpc", 1),
    ]  # fmt: skip


def test_median_and_spread() -> None:
    [group] = grouped(
        [row(run=run, cpu_us_per_request=value) for run, value in enumerate([50.0, 30.0, 40.0, 45.0, 20.0])]
    )
    stat = group.stat("cpu_us_per_request")
    assert stat is not None
    assert (stat.median, stat.lowest, stat.highest, stat.count) == (40.0, 20.0, 50.0, 5)
    assert stat.spread == pytest.approx(0.75)
    assert group.stat("slope_bytes_per_request") is None


def test_runs_without_a_figure_do_not_count() -> None:
    [group] = grouped([row(run=1, cpu_us_per_request=None, requests=0, errors=3), row(run=2)])
    stat = group.stat("cpu_us_per_request")
    assert stat is not None and stat.count == 1
    assert group.errors == 3


def test_the_peer_has_the_same_load() -> None:
    groups = grouped(
        [
            row(),
            row(body_mode="buffered"),
            go(concurrency=4),
            go(case="mix"),
            go(endpoints=100),
            go(picker="llm-d-epp", cpu_us_per_request=100.0),
            go(),
        ]
    )
    ours, best, *_ = groups
    assert peer_of(ours, groups) is groups[-1], "gie-epp before llm-d-epp, whatever came first"
    assert peer_of(best, groups) is groups[-1], "Go knows full duplex only: that is what every mode compares with"
    assert peer_of(groups[-1], groups) is None
    assert ratio(ours, peer_of(ours, groups), "cpu_us_per_request") == pytest.approx(0.2)
    assert peer_of(ours, groups[:-1]) is groups[-2]
    assert peer_of(ours, groups[:-2]) is None


def test_rates_of_an_open_loop_are_told_apart() -> None:
    rows = [row(case="latency", concurrency=None, rps=rps, run=run) for run, rps in ((1, 0.8), (2, 1.3), (1, 470.0))]
    assert [(group.rate, len(group.rows)) for group in grouped(rows)] == [(1.0, 2), (500.0, 1)]


def kept(*rows: object) -> dict[str, tuple[float, bool]]:
    return {bar.what: (bar.value, bar.holds) for bar in bars(grouped(rows))}  # type: ignore[arg-type]


def test_bars_against_go() -> None:
    assert kept(row(cpu_us_per_request=80.0), go(envoy_cpu_us_per_request=100.0)) == {
        "short, 16 at once, CPU ÷ Go's": (pytest.approx(0.4), True),
        "short, 16 at once, Envoy's CPU ÷ with Go's": (pytest.approx(0.8), True),
    }
    assert kept(row(cpu_us_per_request=81.0), go(envoy_cpu_us_per_request=76.0)) == {
        "short, 16 at once, CPU ÷ Go's": (pytest.approx(0.405), False),
        "short, 16 at once, Envoy's CPU ÷ with Go's": (pytest.approx(80 / 76), False),
    }
    best = row(case="stream", concurrency=64, body_mode="buffered", cpu_us_per_request=9.0)
    assert kept(best, go(case="stream", concurrency=64)) == {
        "stream, 64 at once, best mode, CPU ÷ Go's": (pytest.approx(0.045), True)
    }
    assert kept(row()) == {}, "nothing is kept or broken that was not measured"


def test_bars_of_ours_alone() -> None:
    idle = row(case="idle", endpoints=100, concurrency=None, idle_cores=0.1, refresh_hz=15.0)
    assert kept(idle) == {
        "idle, 100 endpoints, full-50ms, cores": (0.1, True),
        "idle, 100 endpoints, pages missed, share": (pytest.approx(0.25), False),
    }
    adaptive = row(case="idle", endpoints=100, concurrency=None, idle_cores=0.1, refresh_hz=0.7, scrape="adaptive")
    assert kept(adaptive) == {"idle, 100 endpoints, adaptive, cores": (0.1, False)}
    assert kept(row(case="pick", endpoints=1000, p99_ms=0.99)) == {
        "decision and booking, 1,000 endpoints, p99 ms": (0.99, True)
    }
    assert kept(row(case="memory", rss_mb=251.0, slope_bytes_per_request=20.0)) == {
        "memory, RSS MB": (251.0, False),
        "memory, slope, bytes/request": (20.0, True),
    }


def test_several_workers_compare_with_one() -> None:
    assert kept(row(), row(workers=2, cpu_us_per_request=45.0)) == {
        "short, 16 at once, CPU ÷ one worker's": (pytest.approx(1.125), False)
    }
    buffered = {"body_mode": "buffered", "cpu_us_per_request": 20.0}
    assert kept(row(**buffered), row(workers=2, **buffered)) == {
        "short, 16 at once, buffered, CPU ÷ one worker's": (1.0, True)
    }


def test_replies_have_bars_too() -> None:
    def probed(p50: float, p99: float) -> ProbeResult:
        figures = Quantiles(p50=p50, p90=p50, p99=p99, p999=p99, max=p99)
        outside = Quantiles(p50=9.0, p90=9.0, p99=9.0, p999=9.0, max=9.0)
        return ProbeResult(count=10, errors=0, unstamped=0, handed_ms=figures, reply_ms=outside, late_ms=outside)

    ours = Replies("poolpilot", "wire", 1, [probed(0.2, 1.0), probed(0.3, 9.0), probed(0.1, 1.5)])
    theirs = Replies("gie-epp", None, 1, [probed(5.0, 50.0)])
    assert [(bar.who, bar.what, bar.value, bar.holds) for bar in bars([], [ours, theirs])] == [
        ("poolpilot wire", "reply, p50 ms", 0.2, True),
        ("poolpilot wire", "reply, p99 ms", 1.5, True),
    ]


def test_streams_are_spread_evenly() -> None:
    assert [(bar.value, bar.holds) for bar in bars([], [], 1.2)] == [(1.2, True)]
    assert [(bar.value, bar.holds) for bar in bars([], [], 1.21)] == [(1.21, False)]

"""The page of Markdown that a bench leaves."""

from pathlib import Path

from cost_rows import go, row
from poolpilot_lab.bench.cost.groups import grouped
from poolpilot_lab.bench.cost.machine import Machine
from poolpilot_lab.bench.cost.plots import by_chunks, by_size, draw, idle_cores
from poolpilot_lab.bench.cost.report import Context, report

QUIET = Machine(
    processor="Some CPU", cores=2, kernel="6.1", python="3.11.7", picker_core="core 1 alone",
    load_average=(0.1, 0.2, 0.3), at="2026-01-01T00:00:00Z",
)  # fmt: skip
CONTEXT = Context(QUIET, "poolpilot bench cost", 60.0, 2.0)
BUSY = Context(
    Machine(**{field: getattr(QUIET, field) for field in QUIET.__struct_fields__} | {"load_average": (1.6, 1.0, 1.0)}),
    "poolpilot bench cost",
    60.0,
    3.0,
    ("gie-epp is left out: no Go.",),
)


def line(page: str, start: str) -> list[str]:
    [found] = [text for text in page.splitlines() if text.startswith(f"| {start}")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_same_mode_comes_first_and_has_ratios() -> None:
    page = report([row(run=1), row(run=2, cpu_us_per_request=60.0), go(), row(body_mode="none")], CONTEXT)
    assert page.index("## Same mode") < page.index("## What other body modes save") < page.index("## Bars")
    assert line(page, "short, 16 at once | poolpilot wire | 50.0")[2:4] == ["50.0 (40%)", "80.0 (0%)"]
    assert line(page, "short, 16 at once | poolpilot wire | 50.0")[-2:] == ["0.250", "1.000"]
    assert line(page, "short, 16 at once | gie-epp")[-2:] == ["–", "–"]
    assert line(page, "short, 16 at once | poolpilot wire | none")[-3:] == ["0.800", "0.200", "1.000"]
    assert line(page, "short, 16 at once, CPU ÷ Go's")[-3:] == ["≤ 0.4", "0.25", "yes"]


def test_several_workers_are_beside_one_with_all_requests_and_one_with_a_share() -> None:
    two = row(workers=2, cpu_us_per_request=60.0, envoy_cpu_us_per_request=88.0)
    page = report([row(), two, row(concurrency=8, cpu_us_per_request=48.0)], CONTEXT)
    [_, section] = page.split("## Several workers")
    found = line(section.partition("## ")[0], "short, 16 at once | poolpilot wire 2 workers")
    assert found[3:] == ["40.0", "60.0", "1.500 (1.50 to 1.50)", "1.500", "1.100", "1.250"]
    assert "## Several workers" not in report([row()], CONTEXT)


def test_several_workers_are_compared_run_by_run_and_in_an_open_loop_too() -> None:
    costs = {1: (40.0, 44.0), 2: (80.0, 84.0), 3: (60.0, 75.0)}
    rows = [
        row(run=run, workers=workers, cpu_us_per_request=cost, case=case, concurrency=None, rps=rate)
        for case, rate in (("latency", 498.0), ("latency", 2_020.0), ("latency", 1.1))
        for run, both in costs.items()
        for workers, cost in zip((1, 2), both, strict=True)
    ]
    [_, section] = report(rows, CONTEXT).split("## Several workers")
    several, _, rest = section.partition("\n## ")
    bars = rest.partition("## Bars")[2]
    for rate in ("500", "2,000"):
        found = line(several, f"latency, {rate}/s | poolpilot wire 2 workers")
        assert found[5:] == ["1.100 (1.05 to 1.25)", "1.250", "1.000", "–"]
        assert line(bars, f"latency, {rate}/s, CPU ÷ one worker's")[-1] == "**no**"
    assert "1/s |" not in several and "latency, 1/s" not in bars, "a handful of requests says nothing"


def test_only_what_was_measured_has_a_section() -> None:
    page = report([row(case="pick", endpoints=100, transport=None, body_mode=None, p99_ms=0.5)], CONTEXT)
    assert [text for text in page.splitlines() if text.startswith("## ")] == ["## Pick", "## Bars"]
    assert line(page, "decision and booking")[-1] == "**no**"


def test_added_latency_is_the_difference_of_runs_in_pairs() -> None:
    alone = {"case": "latency", "picker": "none", "transport": None, "body_mode": None, "concurrency": None}
    ours = {"case": "latency", "concurrency": None}
    page = report(
        [
            row(**alone, run=1, p50_ms=1.0, p99_ms=10.0), row(**ours, run=1, p50_ms=1.5, p99_ms=11.0),
            row(**alone, run=2, p50_ms=2.0, p99_ms=20.0), row(**ours, run=2, p50_ms=2.7, p99_ms=25.0),
            row(**alone, run=3, p50_ms=9.0, p99_ms=90.0), row(**ours, run=3, p50_ms=9.1, p99_ms=90.1),
        ],
        CONTEXT,
    )  # fmt: skip
    assert line(page, "500/s | poolpilot wire")[-2:] == ["0.500", "1.000"]
    assert line(page, "500/s | Envoy alone")[-2:] == ["–", "–"]


def test_a_busy_machine_errors_and_who_is_missing_are_said() -> None:
    assert "do not quote" not in report([row()], CONTEXT)
    page = report([row(errors=12)], BUSY)
    assert "do not quote these figures" in page
    assert "; 12 errors." in page
    assert "gie-epp is left out: no Go." in page


def test_plots(tmp_path: Path) -> None:
    idle = [row(case="idle", endpoints=count, idle_cores=count / 1000) for count in (4, 100)]
    sizes = [row(), row(case="long", cpu_us_per_request=900.0), row(case="million", cpu_us_per_request=9000.0)]
    streams = [row(case="stream", concurrency=count, cpu_us_per_request=10.0 * count) for count in (512, 64)]
    groups = grouped([*idle, *sizes, *streams])
    assert idle_cores(groups) == {"poolpilot wire, full-50ms": [(4, 0.004), (100, 0.1)]}
    assert by_size(groups) == {"poolpilot wire, full-duplex": [(1e3, 40.0), (4e5, 900.0), (4e6, 9000.0)]}
    assert by_chunks(groups) == {"poolpilot wire, full-duplex": [(0.0, 40.0), (200.0, 640.0)]}
    assert draw([*idle, *sizes, *streams], tmp_path) == ["idle-cores.png", "prompt-size.png", "chunks.png"]
    for name in ("idle-cores.png", "prompt-size.png", "chunks.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert draw([row()], tmp_path) == [], "one point is no line"

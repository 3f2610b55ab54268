"""The line finder agrees with prometheus_client on what it reads, and survives what that would refuse."""

import contextlib
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from poolpilot_picker.sources.exposition import Page, Wanted, find, needles
from poolpilot_picker.sources.series import parse_labels

DATA = Path(__file__).parents[2] / "data/engines/vllm-0.32"
PAGES = sorted(path.name for path in DATA.glob("metrics-*.txt"))


def reference(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return series


def as_pairs(found):
    return {name: [(dict(one.labels), one.value) for one in series] for name, series in found.items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, series in left.items():
        assert [labels for labels, _ in series] == [labels for labels, _ in right[name]], name
        for (_, got), (_, wanted) in zip(series, right[name], strict=True):
            assert got == wanted or (math.isnan(got) and math.isnan(wanted)), name


@pytest.mark.parametrize("name", PAGES)
def test_every_series_of_a_recorded_page(name):
    page = (DATA / name).read_bytes()
    wanted = reference(page.decode())
    result = find(page, wanted)
    assert_equal(as_pairs(result.series), wanted)
    assert result.malformed == 0
    assert not result.truncated


@pytest.mark.parametrize("name", PAGES)
def test_the_order_of_the_names_does_not_matter(name):
    page = (DATA / name).read_bytes()
    everything = reference(page.decode())
    names = [
        "vllm:time_to_first_token_seconds_sum",
        "vllm:time_to_first_token_seconds_count",
        "vllm:num_requests_waiting",
        "absent",
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:lora_requests_info",
    ]
    expected = {name: everything[name] for name in names if name in everything}
    for order in (names, names[::-1], sorted(names)):
        finder = Wanted(needles(order))
        for _ in range(3):
            assert_equal(as_pairs(finder.find(page).series), expected)


def test_a_name_is_not_found_by_its_beginning():
    page = b'a_b 1\na_b_total 2\na_b_created 3\na{x="y"} 4\na_bucket{le="1"} 5\n'
    assert as_pairs(find(page, ["a", "a_b"]).series) == {"a": [({"x": "y"}, 4.0)], "a_b": [({}, 1.0)]}


def test_created_series_are_another_name():
    page = b"# TYPE m_total counter\nm_total 3\n# TYPE m_created gauge\nm_created 1.79e+09\n"
    assert as_pairs(find(page, ["m_total"]).series) == {"m_total": [({}, 3.0)]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", math.nan),
        ("+Inf", math.inf),
        ("-Inf", -math.inf),
        ("1e3", 1000.0),
        ("1.5E-02", 0.015),
        ("-4", -4.0),
        ("0x", None),
        ("1_000", None),
        ("", None),
        ("12 34 56", None),
        ("abc", None),
    ],
)
def test_numbers(text, value):
    page = find(f'm{{a="b"}} {text}\nn 1\n'.encode(), ["m", "n"])
    assert as_pairs(page.series)["n"] == [({}, 1.0)]
    if value is None:
        assert "m" not in page.series
        assert page.malformed == 1
    else:
        assert_equal({"m": as_pairs(page.series)["m"]}, {"m": [({"a": "b"}, value)]})


def test_time_stamps_and_exemplars_are_not_the_value():
    page = find(
        b'm{a="b"} 3 1795951802360\nc_total 5 # {trace_id="x}y"} 0.67 1.5\nd{q="1"} 7 12.5 # {t="{"} 1\n',
        ["m", "c_total", "d"],
    )
    assert as_pairs(page.series) == {"m": [({"a": "b"}, 3.0)], "c_total": [({}, 5.0)], "d": [({"q": "1"}, 7.0)]}
    assert page.series["m"][0].timestamp_ms == 1795951802360.0
    assert page.series["c_total"][0].timestamp_ms is None
    assert page.series["d"][0].timestamp_ms == 12.5


def test_escapes_commas_and_braces_in_labels():
    page = find(rb'm{a="x\"y",b="c,d",c="{}} 5",d="back\\slash",e="l\nf",f="# 1"} 2' + b"\n", ["m"])
    assert as_pairs(page.series) == {
        "m": [({"a": 'x"y', "b": "c,d", "c": "{}} 5", "d": "back\\slash", "e": "l\nf", "f": "# 1"}, 2.0)]
    }
    assert page.malformed == 0


def test_carriage_returns_and_blanks():
    page = find(b'# TYPE m gauge\r\nm{a="b"} 2\r\n# TYPE n gauge\r\nn\t3\r\n', ["m", "n"])
    assert as_pairs(page.series) == {"m": [({"a": "b"}, 2.0)], "n": [({}, 3.0)]}
    assert find(b'm{ a = "b" , c="d", } 2\n', ["m"]).series["m"][0].labels == {"a": "b", "c": "d"}
    assert find(b"m{} 2\n", ["m"]).series["m"][0].labels == {}


def test_a_cut_last_line_is_not_read():
    page = find(b"m 12\nn 12", ["m", "n"])
    assert page.truncated
    assert as_pairs(page.series) == {"m": [({}, 12.0)]}
    assert find(b"m 12", ["m"]).series == {}
    assert find(b"m", ["m"]).series == {}
    assert find(b"", ["m"]) == Page({}, 0, False)


def test_open_metrics_end():
    page = find(b"# TYPE m gauge\nm 1\n# EOF\n", ["m"])
    assert as_pairs(page.series) == {"m": [({}, 1.0)]}
    assert not page.truncated


def test_labels_that_are_none():
    for block in (b"a", b"=1", b'a="b', b'a="b"c="d"', b'a="b",,'):
        with pytest.raises(ValueError):
            parse_labels(block)


def test_families_that_are_not_in_one_piece():
    ranks = [
        f'# HELP m x\n# TYPE m gauge\nm{{r="{rank}"}} {rank}\n# HELP h x\n# TYPE h histogram\n'
        f'h_bucket{{le="1",r="{rank}"}} 1\nh_sum{{r="{rank}"}} {rank}.5\nh_count{{r="{rank}"}} 1\n'
        for rank in range(3)
    ]
    padding = "".join(f"filler{number} 1\n" for number in range(1500))
    for page in ("".join(ranks), ranks[0] + padding + ranks[1] + ranks[2], "\n" + padding + "\n".join(ranks)):
        for names in (["m", "h_sum", "h_count"], ["h_count", "h_sum", "m"]):
            finder = Wanted(needles(names))
            for _ in range(2):
                found = as_pairs(finder.find(page.encode()).series)
                assert found["m"] == [({"r": "0"}, 0.0), ({"r": "1"}, 1.0), ({"r": "2"}, 2.0)]
                assert found["h_sum"] == [({"r": "0"}, 0.5), ({"r": "1"}, 1.5), ({"r": "2"}, 2.5)]
                assert len(found["h_count"]) == 3


def test_comments_and_blank_lines_within_a_family():
    lines = ["# TYPE h histogram"]
    for rank in "012":
        lines += [f'h_sum{{r="{rank}"}} {rank}', "# a comment", "", f'h_count{{r="{rank}"}} 1', "# another"]
    page = ("\n".join(lines) + "\n# EOF\n").encode()
    for names in (["h_sum", "h_count"], ["h_count", "h_sum"]):
        found = find(page, names).series
        assert [one.value for one in found["h_sum"]] == [0.0, 1.0, 2.0]
        assert len(found["h_count"]) == 3


def test_sum_and_count_of_ranks_whose_buckets_lie_between():
    lines = []
    for rank in "01":
        lines += [f'h_bucket{{le="1",r="{rank}"}} 1', f'h_sum{{r="{rank}"}} {rank}.5', f'h_count{{r="{rank}"}} {rank}']
    with_header = "# TYPE g gauge\ng 1\n# TYPE h histogram\n" + "\n".join(lines) + "\n# TYPE z gauge\nz 9\n"
    without = "g 1\n" + "\n".join(lines) + "\nz 9\n"
    for text in (with_header, without):
        for names in (["h_sum", "h_count", "z", "g"], ["h_count", "h_sum", "g", "z"], ["z", "h_count", "h_sum"]):
            found = as_pairs(find(text.encode(), names).series)
            assert found["h_sum"] == [({"r": "0"}, 0.5), ({"r": "1"}, 1.5)]
            assert found["h_count"] == [({"r": "0"}, 0.0), ({"r": "1"}, 1.0)]


def test_a_family_that_appears_later_is_seen_within_sixteen_pages():
    filler = "".join(f"filler{number} 1\n" for number in range(2000))
    finder = Wanted(needles(["late", "m"]))
    old, new = ("m 1\n" + filler).encode(), ("m 2\n" + filler + "late 7\n").encode()
    assert len(old) > 8192
    finder.find(old)
    seen = [("late" in finder.find(new).series) for _ in range(16)]
    assert any(seen)
    after_nothing = Wanted(needles(["late", "m"]))
    after_nothing.find(b"")
    after_nothing.find(("x 1\n" * 5000).encode())
    assert "late" in after_nothing.find(new).series
    small = Wanted(needles(["late"]))
    small.find(b"m 1\n")
    assert "late" in small.find(b"late 2\n").series


label_text = st.text(
    alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from('"\\\n{},=# '), max_size=12
)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["m", "m_x", "mm"]),
            st.dictionaries(st.sampled_from("abc"), label_text, max_size=3),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=12,
    ),
    st.permutations(["m", "m_x", "mm"]),
)
def test_pages_written_by_prometheus_client(entries, order):
    registry = CollectorRegistry()
    by_name: dict[str, list] = {}
    for name, labels, value in entries:
        by_name.setdefault(name, []).append((labels, value))
    for name, series in by_name.items():
        keys = sorted({key for labels, _ in series for key in labels})
        gauge = Gauge(name, "help with \\ and {", keys, registry=registry)
        for labels, value in series:
            (gauge.labels(**{key: labels.get(key, "") for key in keys}) if keys else gauge).set(value)
    page = generate_latest(registry)
    result = find(page, order)
    assert result.malformed == 0
    assert_equal(as_pairs(result.series), reference(page.decode()))


def test_counters_and_histograms_written_by_prometheus_client():
    registry = CollectorRegistry()
    histogram = Histogram("h", "help", ["engine"], registry=registry)
    counter = Counter("c", "help", ["engine"], registry=registry)
    for rank in "012":
        histogram.labels(rank).observe(0.5 + int(rank))
        counter.labels(rank).inc(int(rank))
    page = generate_latest(registry)
    wanted = {
        name: series for name, series in reference(page.decode()).items() if name in {"h_sum", "h_count", "c_total"}
    }
    assert_equal(as_pairs(find(page, ["h_sum", "h_count", "c_total"]).series), wanted)


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(alphabet='mn{}"=,\\# \n\t1.e', max_size=120).map(str.encode))
def test_no_page_breaks_the_finder(page):
    result = Wanted(needles(["m", "n", "m_x"]))
    for _ in range(2):
        for series in result.find(page).series.values():
            for one in series:
                with contextlib.suppress(ValueError):
                    dict(one.labels)

"""The short way through a page that comes again reads what the full search reads, or leaves the page to it."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_picker.sources import exposition, page_layout
from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.sources.exposition import Wanted, find, needles
from poolpilot_picker.sources.page_reader import PageReader

pytestmark = pytest.mark.usefixtures("both_cores")

DATA = Path(__file__).parents[2] / "data/engines/vllm-0.32"
PAGES = sorted(path.name for path in DATA.glob("metrics-*.txt"))
NAMES = {everything: BUILTIN["vllm"].families(everything) for everything in (False, True)}
NUMBER = re.compile(rb" ([0-9.e+]+)\n")


@pytest.fixture
def short(monkeypatch):
    """How often the short way was taken, and how often it was not good."""
    taken = {"good": 0, "other": 0}
    made = page_layout.layout_of

    class Counted:
        def __init__(self, lines):
            self._layout = made(lines)

        def read(self, *arguments):
            changed = self._layout.read(*arguments)
            taken["other" if changed is None else "good"] += 1
            return changed

    monkeypatch.setattr(page_layout, "layout_of", Counted)
    return taken


def pairs(page):
    found = sorted(page.series.items())
    return {name: [(one.block, one.value, one.timestamp_ms) for one in series] for name, series in found}


def with_numbers(page: bytes, number) -> bytes:
    """The page with other numbers: `number(text)` for each."""
    return NUMBER.sub(lambda match: b" " + number(match[1]) + b"\n", page)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_whose_numbers_move_is_read_the_short_way(name, everything, short):
    page = (DATA / name).read_bytes()
    wanted = Wanted(needles(NAMES[everything]))
    for turn in range(40):
        ending = (b"%d", b"1%d")[turn % 2] % (turn % 10)
        moved = with_numbers(page, lambda number, ending=ending: number[:-1] + (ending if len(number) == 3 else b"7"))
        result = wanted.find(moved)
        assert pairs(result) == pairs(find(moved, NAMES[everything]))
        assert (result.malformed, result.truncated) == (0, False)
    assert short["good"] == 39, "all but the first"
    assert short["other"] == 0


def test_only_what_changed_is_named_and_counted_anew(short):
    page = (DATA / "metrics-busy-lora.txt").read_bytes()
    reader = PageReader(BUILTIN["vllm"])
    first, _ = reader.read(page, 1.0, everything=False)
    again, same = reader.read(page, 2.0, everything=False)
    assert same.changed == []
    assert (again.running, again.kv_usage, again.taken_ms) == (first.running, first.kv_usage, 2.0)
    busier = page.replace(b"\nvllm:num_requests_running{", b"\n# x\nvllm:num_requests_running{", 1)
    assert reader.read(busier, 3.0, everything=False)[0].running == first.running
    moved = re.sub(rb"(\nvllm:num_requests_waiting\{[^\n]*\} )[0-9.]+", rb"\g<1>7.0", page)
    reader.read(page, 4.0, everything=False)
    later, changed = reader.read(moved, 5.0, everything=False)
    assert changed.changed == [("vllm:num_requests_waiting", 7.0)]
    assert (later.waiting, later.running) == (7.0, first.running)


def edited(page: bytes, edit: str) -> bytes:
    """The page with something else about one wanted family."""
    line = re.search(rb"\nvllm:num_requests_running\{[^\n]*", page)
    assert line is not None
    text = line[0]
    other = text.replace(b'engine="0"', b'engine="9"')
    return {
        "another series behind": page.replace(text, text + other),
        "another series before": page.replace(text, other + text),
        "labels": page.replace(text, text.replace(b'engine="0"', b'engine="5"')),
        "no family": page.replace(text, b""),
        "another line behind": page.replace(text, text + b"\nvllm:num_requests_running_more 3"),
        "not a number": page.replace(text, text.rpartition(b" ")[0] + b" x"),
        "an underscore": page.replace(text, text.rpartition(b" ")[0] + b" 1_0"),
        "nothing": page.replace(text, text.rpartition(b" ")[0] + b" "),
        "NaN": page.replace(text, text.rpartition(b" ")[0] + b" NaN"),
        "a time stamp": page.replace(text, text + b" 1795951802360"),
        "an exemplar": page.replace(text, text + b' # {a="b"} 1'),
        "cut in the number": page[: page.index(text) + len(text)],
        "cut before": page[: page.index(text)],
        "no line feed at the end": page[:-1],
        "a shift": b"# HELP more\n" * 5 + page,
        "a long shift": b"# HELP more\n" * 500 + page,
        "longer numbers": with_numbers(page, lambda number: number + b"000"),
        "empty": b"",
    }[edit]


EDITS = [
    "another series behind",
    "another series before",
    "labels",
    "no family",
    "another line behind",
    "not a number",
    "an underscore",
    "nothing",
    "NaN",
    "a time stamp",
    "an exemplar",
    "cut in the number",
    "cut before",
    "no line feed at the end",
    "a shift",
    "a long shift",
    "longer numbers",
    "empty",
]


def same(left, right) -> bool:
    """Equal, and NaN is NaN."""
    assert left.malformed == right.malformed
    assert left.truncated == right.truncated
    return repr(pairs(left)) == repr(pairs(right)) and left.series.keys() == right.series.keys()


def test_series_added_behind_the_last_line_of_a_large_page_are_seen(short):
    filler = "".join(f"filler{number} 1\n" for number in range(1500))
    header = "# TYPE vllm:num_requests_running gauge\n"

    def page(*running: int) -> bytes:
        ranks = (f'vllm:num_requests_running{{engine="{rank}"}} {number}\n' for rank, number in enumerate(running))
        return (filler + header + "".join(ranks)).encode()

    reader = PageReader(BUILTIN["vllm"])
    assert len(page(1)) > 8192
    told = [
        reader.read(page(*running), 1.0, everything=False)[0].running
        for running in ((1,), (2,), (2, 4), (2, 5), (2, 5, 6), (2,), (12,))
    ]
    assert told == [1.0, 2.0, 6.0, 7.0, 13.0, 2.0, 12.0]
    assert short["good"] == 3


@pytest.mark.parametrize("header", ["# TYPE vllm:time_to_first_token_seconds histogram\n", ""])
def test_a_histogram_put_before_the_first_of_its_family_on_a_large_page_is_seen(header, short):
    filler = "".join(f"filler{number} 1\n" for number in range(1500))
    name = "vllm:time_to_first_token_seconds"

    def page(*ranks: int) -> bytes:
        text = "vllm:num_requests_running 1\n" + filler + header
        for rank in ranks:
            text += "".join(f'{name}_bucket{{engine="{rank}",le="{le}"}} {rank}\n' for le in range(3))
            text += f'{name}_sum{{engine="{rank}"}} {rank}\n{name}_count{{engine="{rank}"}} 1\n'
        return (text + filler).encode()

    reader = PageReader(BUILTIN["vllm"])
    told = [reader.read(page(*ranks), 1.0)[0].ttft for ranks in ((3,), (3,), (2, 3), (2, 3), (1, 2, 3), (2, 3))]
    assert [(one.sum_s, one.count) for one in told] == [(3, 1), (3, 1), (5, 2), (5, 2), (6, 3), (5, 2)]
    assert short["good"] == 2


def test_another_rank_behind_a_large_page_of_several_is_seen(short):
    filler = "".join(f"filler{number} 1\n" for number in range(1500))

    def page(*running: int) -> bytes:
        return "".join(
            f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="{rank}"}} {number}\n{filler}'
            for rank, number in enumerate(running)
        ).encode()

    reader = PageReader(BUILTIN["vllm"])
    told = [
        reader.read(page(*running), 1.0, everything=False)[0].running
        for running in ((1, 2), (1, 3), (1, 3, 5), (1, 3, 6), (1, 3))
    ]
    assert told == [3.0, 4.0, 9.0, 10.0, 4.0]
    assert short["good"] == 2


def test_pages_of_several_ranks_one_behind_the_other(short):
    def page(*running: int) -> bytes:
        return "".join(
            f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="{rank}"}} {number}\n'
            f'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine="{rank}"}} 1\n'
            for rank, number in enumerate(running)
        ).encode()

    reader = PageReader(BUILTIN["vllm"])
    told = []
    for running in ((3, 4), (3, 4), (3, 15), (3, 15, 6), (3, 15, 7), (3,)):
        sample, _ = reader.read(page(*running), 1.0, everything=False)
        told.append((sample.running, sample.waiting))
    assert told == [(7.0, 2.0), (7.0, 2.0), (18.0, 2.0), (24.0, 3.0), (25.0, 3.0), (3.0, 1.0)]
    assert short["good"] == 3


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    "name", ["metrics-busy-lora.txt", "metrics-dp2-multiproc.txt", "metrics-kv-pressure-selected.txt"]
)
def test_a_page_that_became_another_is_searched(name, edit):
    page = (DATA / name).read_bytes()
    changed = edited(page, edit)
    for everything in (False, True):
        wanted = Wanted(needles(NAMES[everything]))
        wanted.find(page)
        wanted.find(page)
        # Of a large page, what it did not have is looked for on each sixteenth only.
        back = () if edit == "no family" else (page, changed, page)
        for one in (changed, changed, *back):
            assert same(wanted.find(one), find(one, NAMES[everything])), edit


def test_stale_bytes_behind_the_page_are_not_read():
    page = (DATA / "metrics-kv-pressure.txt").read_bytes()
    wanted = Wanted(needles(NAMES[True]))
    wanted.find(page)
    buffer = bytearray(b"head\r\n\r\n" + page)
    start = len(buffer) - len(page)
    whole = wanted.again(buffer, start, len(buffer))
    assert whole is not None
    assert pairs(whole) == pairs(find(page, NAMES[True]))
    cut = page.index(b"\nvllm:request_prefill_time_seconds_sum{") + 1
    assert cut > 8192
    assert wanted.again(buffer, start, start + cut) is None, "the buffer still holds the rest of the page before"


def test_a_series_between_lines_that_are_not_wanted_is_seen():
    filler = b"".join(b"filler%d 1\n" % number for number in range(1_000))
    family = b'# TYPE h histogram\nh_sum{r="0"} 1.5\nh_bucket{r="1"} 1\n%bh_sum{r="1"} 2.5\n# TYPE z gauge\n'
    wanted = Wanted(needles(["h_sum"]))
    wanted.find(filler + family % b"")
    later = filler + family % b'h_sum{r="2"} 4.5\nh_bucket{r="2"} 1\n'
    assert pairs(wanted.find(later)) == pairs(find(later, ["h_sum"]))


@pytest.mark.parametrize("last", [b"mm 1\nn_created 5\nm 3\nm 1\n", b"m 3\nm 1\n"])
def test_without_a_header_a_series_before_the_first_is_seen(last):
    names = ["h_count", "m"]
    wanted = Wanted(needles(names))
    wanted.find(b"h_count 4\n" + last)
    later = b'h_count 4\nm{r="1"} 2\nm 3\nm 1\n' + b"x 1\n" * (last.count(b"\n") - 3)
    assert same(wanted.find(later), find(later, names))


def family(name: str, *lines: bytes):
    """Some lines of one family, perhaps with its header."""
    header = st.sampled_from([b"", b"# TYPE %b gauge\n" % name.encode()])
    return st.tuples(header, st.lists(st.sampled_from(lines), max_size=4, unique=True)).map(
        lambda drawn: drawn[0] + b"".join(drawn[1])
    )


FAMILIES = [
    family("m", b'm{r="0"} 1\n', b'm{r="0"} 22\n', b'm{r="1"} 2\n', b"m 3\n", b"m 1 2\n", b"m x\n", b'm{r="0"} 1_0\n'),
    family("n", b'n{r="0"} 12345\n', b'n{r="0"} 1\n', b"n_created 5\n", b"n 7\n"),
    family("h", b'h_bucket{r="0"} 1\n', b'h_sum{r="0"} 1.5\n', b'h_sum{r="1"} 10.25\n', b'h_count{r="0"} 4\n'),
    family("other", b"other 1\n", b"mm 1\n", b"other 1234567\n"),
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_comes_after_whatever(data):
    names = ["m", "n", "h_sum", "h_count"]
    wanted = Wanted(needles(names))
    order = data.draw(st.permutations(FAMILIES))
    pages = st.tuples(*order, st.sampled_from([b"", b"", b"z 7", b"m 7"])).map(b"".join)
    for page in data.draw(st.lists(pages, min_size=2, max_size=6)):
        for _ in range(2):
            assert same(wanted.find(page), find(page, names))


def test_many_series_of_one_name_are_read_in_turns_and_bounded(monkeypatch):
    page = b"".join(b'vllm:num_requests_running{r="%d"} 1\n' % number for number in range(3_000))
    turns = Wanted(needles(NAMES[False])).search(page)
    yields = sum(1 for _ in turns)
    assert yields == 3_000 // 512
    monkeypatch.setattr(exposition, "_MOST_SERIES", 1_024)
    assert len(find(page, NAMES[False]).series["vllm:num_requests_running"]) == 1_024
    sample, _ = PageReader(BUILTIN["vllm"]).read(page.replace(b"r=", b"pid="), 0.0)
    assert sample.running is None, "more ranks than any engine has are no load"


def test_a_large_page_of_something_else_is_searched_name_by_name():
    page = b"other_metric 1\n" * 20_000
    yields = sum(1 for _ in Wanted(needles(NAMES[True])).search(page))
    assert yields == len(NAMES[True])


def test_values_that_say_nothing_stay_unknown_on_the_short_way():
    reader = PageReader(BUILTIN["vllm"])
    for value, expected in ((b"3", 3.0), (b"NaN", None), (b"4", 4.0), (b"-1", None), (b"+Inf", None), (b"0", 0.0)):
        page = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running %b\n" % value
        assert reader.read(page, 0.0, everything=False)[0].running == expected
    assert not math.isnan(reader.read(b"vllm:kv_cache_usage_perc 1.5\n", 0.0)[0].kv_usage or 0.0)

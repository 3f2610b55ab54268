"""The compiled reading of pages and heads against the reference, and what no input may do to it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poolpilot_picker import compiled
from poolpilot_picker.sources import page_layout
from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.sources.engines.mapping import reference_usable, reference_usable_share
from poolpilot_picker.sources.exposition import Wanted, needles, reference_any_named
from poolpilot_picker.sources.http_connection import reference_same_head
from poolpilot_picker.sources.page_layout import ReferenceLayout
from poolpilot_picker.sources.page_reader import reference_update
from poolpilot_picker.sources.series import Series
from poolpilot_picker.state.samples import EngineSample

CORE = compiled.load()
PAGE = (Path(__file__).parents[2] / "data/engines/vllm-0.32/metrics-busy-lora.txt").read_bytes()
NAMES = BUILTIN["vllm"].families(everything=True)
PIECES = (b"\n", b" ", b"9", b"_", b"\0", b"e", b"NaN", b"-", b"1" * 40, b"\n# TYPE x gauge\n", b"x 1\n" * 400, b"\xff")


def learned(page, names):
    """The lines of a page as `learn` had them, and what was found on it."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_layout, "layout_of", lambda lines: kept.append(list(lines)))
        found = Wanted(needles(names)).find(page).series
    return kept[-1] if kept else None, found


LINES, FOUND = learned(PAGE, NAMES)
WANTED = sorted(PAGE.index(line[2]) for line in LINES)
"""Where the wanted lines are."""


def both(lines, pages):
    """Every page read by both, in turn: what they return and what they have found, until one is another page."""
    mine, theirs = CORE.layout(lines, Series), ReferenceLayout(list(lines))
    found = {name: list(series) for name, series in FOUND.items()}
    reference = {name: list(series) for name, series in FOUND.items()}
    for text, begin, end in pages:
        changed = mine.read(text, begin, end, found)
        assert repr(changed) == repr(theirs.read(text, begin, end, reference))
        assert repr(found) == repr(reference)
        if changed is None:
            return


edits = st.lists(
    st.tuples(
        st.sampled_from(WANTED).flatmap(lambda at: st.integers(at, min(at + 300, len(PAGE) - 1)))
        | st.integers(0, len(PAGE) - 1),
        st.integers(0, 3) | st.integers(0, 2_000),
        st.sampled_from(PIECES) | st.binary(max_size=4),
    ),
    max_size=3,
)


def edited(edits):
    page = PAGE
    for at, removed, put in edits:
        page = page[:at] + put + page[at + removed :]
    return page


@settings(max_examples=1_500, deadline=None)
@given(st.lists(st.tuples(edits, st.binary(max_size=3), st.binary(max_size=3), st.integers(0, 40)), max_size=4))
def test_edited_pages_are_read_as_by_the_reference(drawn):
    pages = []
    for edit, before, behind, cut in drawn:
        page = edited(edit)
        page = page[: len(page) - cut] if cut < 20 else page
        pages.append((bytearray(before + page + behind), len(before), len(before) + len(page)))
    both(LINES, [one for one in pages if one[2] > one[1] and one[0][one[2] - 1] == 0x0A])


numbers = st.one_of(
    st.floats().map(lambda value: repr(value).encode()),
    st.integers().map(lambda value: b"%d" % value),
    st.text(" \t\r\x0b\x0c0123456789+-.eE_nNaAiIfFtTyY\0x", max_size=34).map(str.encode),
    st.binary(max_size=34).filter(lambda raw: b"\n" not in raw),
)


@settings(max_examples=1_500, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=4))
@example([b"1e999", b"-1e999", b"infinity", b"1" * 32, b"1" * 33, b"0x10", b" 1", b"1 ", b"\xa01"])
@example([b"1\0"])
@example([b""])
def test_numbers_are_read_as_by_the_reference(drawn):
    [line] = [line for line in LINES if b"num_requests_waiting{" in line[2]]
    at = PAGE.index(line[2]) + len(line[2])
    stop = PAGE.index(b"\n", at)
    for raw in drawn:
        page = PAGE[:at] + raw + PAGE[stop:]
        both(LINES, [(page, 0, len(page)), (page, 0, len(page)), (PAGE, 0, len(PAGE))])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_lines_on_whatever_text_stay_within_it(data):
    text = data.draw(st.binary(max_size=60) | st.text("\n #ab1", max_size=60).map(str.encode)) + b"\n"
    lines = []
    for _ in range(data.draw(st.integers(1, 3))):
        prefix = data.draw(st.text("\n #ab1", min_size=1, max_size=3)).encode()
        follow = b"\n" + data.draw(st.text("\n #ab1", max_size=3)).encode()
        raw = data.draw(st.text("12.", max_size=3)).encode()
        between = data.draw(st.integers(-1, 2))
        lead = data.draw(st.sampled_from([b"", b"\n", b"\na", b"\n#"]))
        whole = b"" if between > 0 or lead else prefix + raw + follow
        gap = data.draw(st.integers(0, 70))
        size = len(prefix)
        lines.append(
            (
                whole,
                size + len(raw),
                prefix,
                size,
                gap,
                between,
                follow,
                raw,
                lead,
                ("vllm:num_requests_running", 0, b""),
            )
        )
    begin = data.draw(st.integers(0, len(text) - 1))
    both(lines, [(text, begin, len(text))] * 2)


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (6, 5), (0, len(PAGE) + 1)])
def test_a_page_outside_its_buffer_is_refused(begin, end):
    with pytest.raises(IndexError):
        CORE.layout(LINES, Series).read(PAGE, begin, end, FOUND)


def test_lines_that_are_none_are_refused():
    whole, length, prefix, size, gap, between, follow, raw, lead, place = LINES[0]
    for line in (
        (whole, length, b"", 0, gap, between, follow, raw, lead, place),
        (whole, length, prefix, size, -1, between, follow, raw, lead, place),
        (whole, length, prefix, size, gap, between, b"x", raw, lead, place),
        (whole, length, prefix, size, gap, between, follow, b"1" * 33, lead, place),
    ):
        with pytest.raises(ValueError, match="line 0"):
            CORE.layout([line], Series)


def test_the_buffer_can_be_resized_again():
    buffer = bytearray(PAGE)
    assert CORE.layout(LINES, Series).read(buffer, 0, len(buffer), FOUND) == []
    buffer += b"more"


BEFORE, BEHIND = b"HTTP/1.1 200 OK\r\ncontent-length: ", b"\r\nserver: x\r\n\r\n"
lengths = st.integers(0, 10**20).map(lambda size: b"%d" % size) | st.text("0123456789 +-_x\r", max_size=22).map(
    str.encode
)


@settings(max_examples=1_000, deadline=None)
@given(lengths, st.binary(max_size=5), st.integers(-3, 60), st.sampled_from([BEHIND, b"\r\n\r\n", BEHIND[:-1]]))
@example(b"9" * 18, b"", 0, BEHIND)
@example(b"9" * 19, b"", 0, BEHIND)
@example("٣".encode(), b"", 0, BEHIND)
def test_heads_are_known_again_as_by_the_reference(length, body, less, behind):
    for prefix in (BEFORE, b"", BEFORE[1:]):
        buffer = bytearray(prefix + length + behind + body)
        filled = max(0, min(len(buffer), len(buffer) - less))
        assert CORE.same_head(buffer, filled, BEFORE, BEHIND) == reference_same_head(buffer, filled, BEFORE, BEHIND)


def test_a_head_is_known_again_when_only_its_length_differs():
    buffer = bytearray(BEFORE + b"123" + BEHIND + b"body")
    at = len(BEFORE) + 3 + len(BEHIND)
    assert CORE.same_head(buffer, len(buffer), BEFORE, BEHIND) == (at, at + 123)
    assert CORE.same_head(buffer, at - 1, BEFORE, BEHIND) is None, "not whole"
    with pytest.raises(IndexError):
        CORE.same_head(buffer, len(buffer) + 1, BEFORE, BEHIND)


names = st.sampled_from((b"", b"a", b"ab", b"abc", b"b", b"x:a"))


@given(st.lists(names.map(lambda name: b"\n" + name), max_size=3), st.data())
def test_names_are_looked_for_as_the_reference_does(wanted, data):
    ends = st.sampled_from((b" 1", b"\t1", b'{a="b"} 1', b"_sum 1", b"c 1", b""))
    lines = data.draw(st.lists(st.builds(bytes.__add__, names, ends), max_size=6))
    text = b"\n" + b"\n".join(lines) + b"\n"
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    for page in (text, bytearray(text)):
        try:
            told = reference_any_named(page, start, end, wanted)
        except IndexError:  # a name at the very end of the text: the reference looks behind it
            continue
        assert CORE.any_named(page, start, end, wanted) is told


def test_names_are_looked_for_inside_the_page_only():
    for start, end in ((-1, 2), (3, 2), (0, 6)):
        with pytest.raises(IndexError):
            CORE.any_named(b"\na 1\n", start, end, [b"\na"])


values = st.floats() | st.sampled_from((0.0, -0.0, 1.0, 1.5, -1.0, math.inf, math.nan))
fields = st.sampled_from(("running", "waiting", "kv_usage", "preemptions"))


@given(values)
def test_a_value_is_usable_or_not_as_the_reference_says(value):
    assert repr(CORE.usable(value)) == repr(reference_usable(value))
    assert repr(CORE.usable_share(value)) == repr(reference_usable_share(value))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), values), max_size=4),
    st.fixed_dictionaries({name: st.lists(values, max_size=2) for name in "ab"}),
    st.fixed_dictionaries(
        {
            name: st.lists(
                st.tuples(fields, st.sampled_from((None, reference_usable, reference_usable_share))), max_size=3
            )
            for name in "ab"
        }
    ),
)
def test_a_sample_is_brought_up_to_date_as_the_reference_does(changed, numbers, by_family):
    found = {name: [Series(b"", value) for value in some] for name, some in numbers.items()}
    mine, theirs = EngineSample(taken_ms=1.0, running=5.0), EngineSample(taken_ms=1.0, running=5.0)
    left = CORE.update(mine, changed, found, by_family)
    assert left == reference_update(theirs, changed, found, by_family)
    assert repr(mine) == repr(theirs)


def test_what_changed_in_a_family_that_nobody_asked_for_is_an_error():
    with pytest.raises(KeyError):
        CORE.update(EngineSample(taken_ms=1.0), [("c", 1.0)], {}, {})
    with pytest.raises(TypeError):
        CORE.update(EngineSample(taken_ms=1.0), [("c", 1.0)], {"c": 3}, {"c": []})

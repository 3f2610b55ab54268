"""The token estimate against counts of real tokenizers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from poolpilot_picker.requests.tokens import SAMPLE_BYTES, TABLE, UNIT, WEIGHTS, estimate, text_units

SAMPLES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "requests" / "token-samples.json").read_text("utf-8")
)["samples"]


def counted(sample: dict[str, Any]) -> float:
    return math.exp(fmean(math.log(count) for count in sample["tokens"].values()))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["name"])
def test_each_kind_of_text_is_estimated_within_a_quarter(sample: dict[str, Any]) -> None:
    ratio = text_units(sample["text"].encode()) / counted(sample)
    assert 0.75 < ratio < 1.25


def test_the_mean_error_is_a_third_of_that_of_counting_bytes() -> None:
    ours = fmean(abs(text_units(sample["text"].encode()) / counted(sample) - 1) for sample in SAMPLES)
    bytes_only = fmean(abs(len(sample["text"].encode()) / 4 / counted(sample) - 1) for sample in SAMPLES)
    assert ours < 0.08
    assert ours < bytes_only / 2.5


def test_no_script_is_charged_more_than_another_for_the_same_tokens() -> None:
    ratios = {sample["name"]: text_units(sample["text"].encode()) / counted(sample) for sample in SAMPLES}
    latin = ratios["english prose"]
    for script in ("chinese", "japanese", "korean", "russian", "arabic", "hindi", "thai", "greek", "hebrew"):
        assert 0.8 < ratios[script] / latin < 1.25, script


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["name"])
def test_long_texts_are_judged_by_samples_that_stand_for_the_whole(sample: dict[str, Any]) -> None:
    text = sample["text"].encode()
    times = 400_000 // len(text)
    assert text_units(text * times) == pytest.approx(text_units(text) * times, rel=0.08)


def test_a_change_of_script_in_the_middle_is_seen() -> None:
    by_name = {sample["name"]: sample["text"].encode() for sample in SAMPLES}
    english, chinese = by_name["english prose"] * 300, by_name["chinese"] * 300
    together = text_units(english) + text_units(chinese)
    assert text_units(english + chinese) == pytest.approx(together, rel=0.05)


def test_the_sample_ends_where_the_short_text_begins() -> None:
    text = b"word " * (SAMPLE_BYTES // 5)
    assert text_units(text + b"word ") == pytest.approx(text_units(text), rel=0.01)


def test_no_text_is_no_tokens() -> None:
    assert text_units(b"") == 0.0
    assert estimate(0.0) == 0


def test_the_ratio_of_a_model_scales_the_estimate() -> None:
    assert estimate(100.0, 1.25) == 125
    assert estimate(100.4) == 100
    assert estimate(-3.0) == 0


def test_every_weight_fits_its_byte() -> None:
    assert all(0 <= round(tokens * UNIT) <= 255 for _, _, tokens in WEIGHTS)
    assert len(TABLE) == 256
    assert not any(TABLE[0x80:0xC0]), "continuation bytes cost nothing"

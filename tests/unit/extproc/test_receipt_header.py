"""Receipts as a response header: JSON in ASCII, bounded."""

from __future__ import annotations

import msgspec
import pytest

from poolpilot_picker.extproc.receipts import MOST_BYTES, receipt_text
from poolpilot_picker.flow.receipts import CandidateReceipt, Receipt


def receipt(candidates: int, chosen: int = 0, fallbacks: tuple[int, ...] = (), model: str = "m") -> Receipt:
    """A receipt of a decision among so many."""
    addresses = [f"10.0.{index >> 8}.{index & 255}:8000" for index in range(candidates)]
    return Receipt(
        request_id="r",
        at_ms=1.0,
        pool="pool",
        model=model,
        target_model=model,
        prompt_tokens=10,
        expected_output_tokens=5.0,
        chosen=addresses[chosen],
        fallbacks=[addresses[index] for index in fallbacks],
        predicted_ttft_ms=1.0,
        predicted_finish_ms=2.0,
        candidates=[CandidateReceipt(endpoint=one, terms={"wait": 1.5, "prefill": None}) for one in addresses],
    )


def test_a_small_one_is_whole() -> None:
    whole = receipt(3)
    assert msgspec.json.decode(receipt_text(whole)) == {**msgspec.to_builtins(whole), "omitted": 0}


@pytest.mark.parametrize("candidates", [50, 200, 1_000])
def test_a_large_one_keeps_what_was_chosen(candidates: int) -> None:
    text = receipt_text(receipt(candidates, chosen=candidates - 1, fallbacks=(candidates - 3, 7)))
    assert len(text) <= MOST_BYTES
    shown = msgspec.json.decode(text)
    assert [one["endpoint"] for one in shown["candidates"]][:3] == [shown["chosen"], *shown["fallbacks"]]
    assert shown["omitted"] == candidates - len(shown["candidates"])
    assert candidates == 50 or shown["omitted"] > 0


def test_names_of_clients_cannot_break_the_header() -> None:
    text = receipt_text(receipt(1, model="a\r\nset-cookie: x\u2028\u00e9\x00"))
    assert text.isascii() and text.isprintable()
    assert msgspec.json.decode(text)["model"] == "a\r\nset-cookie: x\u2028\u00e9\x00"


def test_a_long_model_name_does_not_break_the_bound() -> None:
    long = receipt(1_000, fallbacks=tuple(range(1, 1_000)), model="\u6c34" * 100_000)
    assert len(receipt_text(long)) <= MOST_BYTES

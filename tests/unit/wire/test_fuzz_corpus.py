"""Inputs that fuzzing has found worth keeping, played again: nothing raises, nothing hangs, readers agree.

`python tests/support/fuzz.py TARGET --work DIR` looks for more; what was found so far is in docs/benchmarks/soak.md.
"""

from __future__ import annotations

import pytest

from fuzz_targets import PICKER, TARGETS, beginnings, connection, corpus, header_blocks, requests

pytestmark = pytest.mark.usefixtures("both_cores")


@pytest.fixture(scope="module", autouse=True)
def picker_of_this_core(both_cores: None) -> None:
    """What another core has served is not for this one."""
    PICKER.clear()


@pytest.mark.parametrize("target", TARGETS)
def test_corpus(target: str) -> None:
    inputs = [*corpus(target), *beginnings(target)]
    assert len(inputs) > 5
    for data in inputs:
        TARGETS[target](data)


def test_targets_notice_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is of use only if it can fail."""
    monkeypatch.setattr("fuzz_targets.ext_proc.ProcessingRequest.FromString", _of_another)
    with pytest.raises(AssertionError):
        requests(beginnings("requests")[0])
    monkeypatch.setattr("fuzz_targets.OracleDecoder.decode", lambda *_, **__: [(b"other", b"field")])
    with pytest.raises(AssertionError):
        header_blocks(beginnings("header-blocks")[0])
    monkeypatch.setattr("fuzz_targets.PICKER", [])
    monkeypatch.setattr("fuzz_targets.Pool.finish", lambda *_: False)
    with pytest.raises(AssertionError):
        connection(beginnings("connection")[3])


def _of_another(_: bytes) -> object:
    from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

    message = ext_proc.ProcessingRequest()
    message.response_trailers.SetInParent()
    return message

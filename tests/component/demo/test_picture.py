"""The picture is produced, whatever the runs looked like."""

import itertools
from pathlib import Path

import pytest

from poolpilot_lab.demo.picture import Panel, draw
from poolpilot_lab.demo.series import EndpointSeries

LABELS = ["H100", "H100", "A100", "H100 small KV"]


def series(peak: float, samples: int) -> EndpointSeries:
    made = EndpointSeries("engine")
    for index in range(samples):
        made.add(index * 0.5, peak * index, peak * index / 2, min(1.0, index / 50))
    return made


def panel(title: str, samples: int) -> Panel:
    return Panel(title, "time to first token p95 1.23 s", [series(peak, samples) for peak in (0.1, 0.2, 2.0, 0.3)])


@pytest.mark.parametrize("samples", [0, 1, 120])
def test_a_png_of_two_policies(tmp_path: Path, samples: int) -> None:
    path = tmp_path / "demo.png"
    draw(path, "The same requests", [panel("Envoy's round robin", samples), panel("poolpilot", samples)], LABELS)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width > 1500
    assert height > 1000


def test_different_runs_make_different_pictures(tmp_path: Path) -> None:
    for name, samples in (("a", 20), ("b", 60)):
        draw(tmp_path / name, "The same requests", [panel("one", samples), panel("other", 40)], LABELS)
    pictures = [(tmp_path / name).read_bytes() for name in "ab"]
    assert all(one != other for one, other in itertools.pairwise(pictures))

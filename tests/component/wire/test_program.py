"""The picker as a program on the wire transport."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from extproc_client import BUFFERED, NONE
from picker_program import PickerProgram
from poolpilot_picker.main import main, options_of, parser

POD = "127.0.0.1:9"


def test_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--endpoints", POD]
    assert options_of(parser().parse_args(flags)).transport == "wire"
    assert options_of(parser().parse_args([*flags, "--transport", "grpc"])).transport == "grpc"
    with pytest.raises(SystemExit):
        main([*flags, "--transport", "http"])
    assert "argument --transport: invalid choice: 'http'" in capsys.readouterr().err


async def test_a_picker(tmp_path: Path) -> None:
    async with PickerProgram(tmp_path, "--endpoints", POD, "--transport", "wire", "--pool-name", "llama") as picker:
        async with picker.plane() as plane:
            for service in ("", "llama", "inference-extension"):
                assert await plane.health(service) == "SERVING"
            stream = plane.open(BUFFERED, NONE)
            assert await stream.place() == POD
            await stream.answer(POD)
            await stream.must_read()
            await stream.done()
        if sys.platform == "linux":
            maps = Path(f"/proc/{picker.child.pid}/maps").read_text()
            assert "msgspec" in maps and "cygrpc" not in maps, "the gRPC library is not even loaded"
        picker.terminate()
        assert await picker.exits() == 0

"""Looks for inputs that break a promise: `python tests/support/fuzz.py TARGET --seconds 300 --work DIR`.

Needs `atheris` (in the test group on Linux). New inputs gather in DIR/TARGET, one that broke something is
DIR/TARGET-crash-…; `--keep N` then puts the smallest that together reach the same code into tests/data/fuzz, N at most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

if "--keep" in sys.argv:
    import fuzz_targets
else:
    import atheris

    with atheris.instrument_imports(include=["poolpilot_picker"]):
        import fuzz_targets


def main() -> None:
    """Runs libFuzzer, which ends the process itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("target", choices=sorted(fuzz_targets.TARGETS))
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--keep", type=int, metavar="N", help="do not search; write the corpus of the project")
    options = parser.parse_args()
    folder = options.work / options.target
    folder.mkdir(parents=True, exist_ok=True)
    if options.keep is not None:
        keep(options.target, folder, options.keep)
        return
    for number, data in enumerate(fuzz_targets.corpus(options.target) + fuzz_targets.beginnings(options.target)):
        (folder / f"begin-{number}").write_bytes(data)
    flags = [f"-max_total_time={options.seconds}", "-timeout=10", "-rss_limit_mb=4000", "-print_final_stats=1"]
    flags += [f"-artifact_prefix={options.work}/{options.target}-", "-max_len=4096", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *flags, str(folder)], fuzz_targets.TARGETS[options.target])
    atheris.Fuzz()


def keep(target: str, folder: Path, most: int) -> None:
    """Writes the corpus: of all inputs, the smallest first, those that make a step between lines none made before."""
    run = fuzz_targets.TARGETS[target]
    inputs = {file.read_bytes() for file in folder.iterdir()} | set(fuzz_targets.corpus(target))
    seen: set[tuple[str, int, int]] = set()
    kept: list[bytes] = []
    for data in sorted(inputs, key=lambda one: (len(one), one)):
        before = len(seen)
        steps(run, data, seen)
        if len(seen) > before:
            kept.append(data)
    fuzz_targets.CORPUS.mkdir(exist_ok=True)
    (fuzz_targets.CORPUS / f"{target}.txt").write_text("".join(f"{data.hex()}\n" for data in kept[:most]))


def steps(run: Callable[[bytes], None], data: bytes, seen: set[tuple[str, int, int]]) -> None:
    """Adds the (file, line, next line) of the picker's code that an input passes."""
    last: dict[int, int] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if "poolpilot_picker" not in file:
            return None
        if event == "line":
            seen.add((file, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "call":
            last[id(frame)] = 0
        return trace

    sys.settrace(trace)
    try:
        run(data)
    finally:
        sys.settrace(None)


if __name__ == "__main__":
    main()

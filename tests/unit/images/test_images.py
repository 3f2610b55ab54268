"""The Dockerfile, without Docker: read and checked instruction by instruction; its cheap commands are run."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = {"picker": "poolpilot-picker", "operator": "poolpilot-operator", "lab": "poolpilot"}


class Instruction(NamedTuple):
    """One of a Dockerfile."""

    word: str
    text: str


class Stage(NamedTuple):
    """From one FROM to the next."""

    name: str
    base: str
    instructions: list[Instruction]

    def all(self, word: str) -> list[str]:
        return [one.text for one in self.instructions if one.word == word]


def stages() -> dict[str, Stage]:
    text = (FOLDER / "Dockerfile").read_text()
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    made: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            made[name] = Stage(name, base, [])
        elif made:
            list(made.values())[-1].instructions.append(Instruction(word, rest.strip()))
        else:
            assert word == "ARG", "only arguments stand before the first stage"
    return made


STAGES = stages()


def test_there_is_an_image_for_each_deployable() -> None:
    assert set(TARGETS) <= set(STAGES)
    for extra, program in TARGETS.items():
        assert STAGES[extra].all("ENTRYPOINT") == [f'["{program}"]']
        assert program in PROJECT["project"]["scripts"]


@pytest.mark.parametrize("name", TARGETS)
def test_nobody_is_root(name: str) -> None:
    """Numeric, so that the kubelet's runAsNonRoot can check it; the number that the charts give."""
    *_, last = STAGES[name].all("USER")
    assert last == "65532:65532"
    after = [one.word for one in STAGES[name].instructions]
    assert "RUN" not in after[after.index("USER") :]


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_bases_are_pinned_to_a_version_or_are_stages(stage: Stage) -> None:
    assert stage.base in STAGES or stage.base == "python:${PYTHON}"
    [default] = re.findall(r"^ARG PYTHON=(\S+)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    assert re.match(r"3\.\d+-slim-[a-z]+", default)


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_what_is_copied_is_there_and_is_not_ignored(stage: Stage) -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[1] == "*"
    assert stage.all("ADD") == []
    for text in stage.all("COPY"):
        *sources, _ = text.split()
        if sources[0].startswith("--from="):
            assert sources[0].removeprefix("--from=") in STAGES
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert any(Path(source).match(one) for one in allowed), source


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_everything_installed_is_locked(stage: Stage) -> None:
    for text in stage.all("RUN"):
        for command in text.split(" && "):
            if re.search(r"\bpip\b.*\binstall\b", command) and "uninstall" not in command:
                local = "--no-deps --no-index" in command
                assert local or "--require-hashes" in command, command
                assert "--no-cache-dir" in command
                assert not re.search(r"(-i|--index-url|--extra-index-url|--trusted-host)\b", command)
        if "apt-get install" in text:
            assert "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists/*" in text
        assert not re.search(r"\b(curl|wget|sudo|ssh)\b", text)


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_holds_its_own_lock_and_no_compiler(name: str) -> None:
    files = STAGES[f"{name}-files"]
    assert f"requirements/{name}.txt requirements.txt" in files.all("COPY")
    assert STAGES[name].base == "base"
    assert STAGES[name].all("COPY") == [f"--from={name}-files /opt/poolpilot /opt/poolpilot"]
    assert not [text for text in STAGES["base"].all("RUN") if "apt-get" in text]


def locked() -> list[str]:
    [command] = [text for text in STAGES["wheel"].all("RUN") if "locked.py" in text]
    return re.sub(r"\s*>.*", "", command).removeprefix("python ").split()


def test_the_tools_of_the_build_come_from_the_lock_with_all_they_need() -> None:
    done = subprocess.run([sys.executable, *locked()], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    _, _, *names = locked()
    assert re.findall(r"^([-a-z0-9]+)==\S+ \\$", done.stdout, re.MULTILINE) == names
    assert done.stdout.count("--hash=sha256:") >= len(names)
    required = {re.split(r"[ <>=!;\[]", one)[0].lower() for one in PROJECT["build-system"]["requires"]}
    for name in set(required):
        for one in importlib.metadata.requires(name) or ():
            marker = one.partition(";")[2]
            if "extra" not in marker and "python_version" not in marker:
                required.add(re.split(r"[ <>=!;\[~]", one)[0].lower())
    assert required <= set(names)


def test_a_tool_that_is_not_locked_stops_the_build() -> None:
    done = subprocess.run(
        [sys.executable, "images/locked.py", "requirements/dev.txt", "hatchling", "hatchlinng"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1 and "hatchlinng" in done.stderr and done.stdout == ""


def test_the_commands_make_a_wheel_with_the_core_and_an_environment_that_runs(tmp_path: Path) -> None:
    """Those of the Dockerfile, with other folders; packages themselves come from this environment."""
    build, check = STAGES["wheel"].all("RUN")[-2:]
    install = STAGES["picker-files"].all("RUN")[-1]
    made = tmp_path / "poolpilot"
    for command in (build, check, "python -m venv --without-pip /opt/poolpilot", install):
        here = command.replace("/wheel", str(tmp_path / "wheel")).replace("/opt/poolpilot", str(made))
        done = subprocess.run(
            ["/bin/sh", "-c", here],
            cwd=ROOT,
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"{here}\n{done.stderr}"
    [site] = made.glob("lib/python3*/site-packages")
    assert {f"{name}" for name in TARGETS.values()} <= {path.name for path in (made / "bin").iterdir()}
    assert list(site.glob("poolpilot_picker/compiled/_columns*.so"))
    assert not list(site.glob("pip*")), "nothing is installed into a finished image"
    # Without its packages it says which extra is missing; an import error would be a fault of the wheel.
    said = subprocess.run([made / "bin/poolpilot", "help"], capture_output=True, text=True, timeout=30)
    assert said.returncode == 0 and "picker" in said.stdout

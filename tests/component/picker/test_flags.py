"""Flags: what is taken, and what is said of those that are wrong: flag, value and what is allowed."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.main import main, options_of, parser

TLS = Path(__file__).parents[2] / "data/tls"
ONE = ["--endpoints", "10.0.0.1:8000"]
PICKER = ["--picker-name", "p", "--picker-namespace", "n"]


def problems(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of wrong flags; the program ends with 2 for each."""
    with pytest.raises((SystemExit, ConfigurationError)) as caught:
        options_of(parser().parse_args(flags))
    error = caught.value
    if isinstance(error, ConfigurationError):
        assert error.exit_code == 2
        return "\n".join(error.problems)
    assert error.code == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("poolpilot-picker: error: ")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            [],
            "give --endpoints, --endpoints-file, or, in Kubernetes, --pool-name or --endpoint-selector: the picker",
        ),
        ([*ONE, "--endpoints-file", "{tmp}/e.yaml"], "--endpoints and --endpoints-file exclude each other"),
        (["--endpoints", ""], "give --endpoints, --endpoints-file, or, in Kubernetes, --pool-name"),
        (
            [*ONE, "--pool-namespace", "a"],
            "--pool-namespace and --endpoints exclude each other: the endpoints are known",
        ),
        (["--endpoint-selector", "a=b"], "--endpoint-selector and --endpoint-target-ports go together"),
        (
            ["--pool-name", "p", "--endpoint-target-ports", "1"],
            "--endpoint-selector and --endpoint-target-ports go together",
        ),
        *(
            (
                ["--endpoint-selector", "a=b", "--endpoint-target-ports", ports],
                f"--endpoint-target-ports is {ports!r}; allowed are 1 to 8 different ports, 1-65535",
            )
            for ports in ("0", "65536", "80,80", "80,", "http", "1,2,3,4,5,6,7,8,9")
        ),
        (["--pool-name", "p", "--kubeconfig", "{tmp}/missing"], "Kubernetes: {tmp}/missing: "),
        ([*PICKER, "--kubeconfig", "{tmp}/missing"], "Kubernetes: {tmp}/missing: "),
        (["--picker-name", "p"], "--picker-name needs --picker-namespace: a Picker is known by both"),
        (["--operator-namespace", "n"], "--operator-namespace needs --picker-name: it says where a Picker"),
        (["--picker-namespace", "n"], "--picker-namespace needs --picker-name: it says where a Picker"),
        ([*ONE, "--pool-namespaces", "a,b"], "--pool-namespaces needs --picker-name: it says where a Picker"),
        (
            ["--picker-name", "P", "--picker-namespace", "n"],
            "--picker-name is 'P'; allowed is the name of an object: at most 63 of a-z, 0-9, -",
        ),
        (["--picker-name", "p", "--picker-namespace", "n.m"], "--picker-namespace is 'n.m'; allowed is the name"),
        ([*PICKER, "--pool-namespaces", "a,"], "--pool-namespaces is ''; allowed is the name of an object"),
        *(
            ([*PICKER, flag, value], f"{flag} and --picker-name exclude each other: the pools are those of the Picker")
            for flag, value in (
                ("--pool-name", "p"),
                ("--pool-namespace", "n"),
                ("--endpoints", "10.0.0.1:8000"),
                ("--endpoints-file", "{tmp}/e.yaml"),
                ("--endpoint-selector", "a=b"),
                ("--endpoint-target-ports", "1"),
            )
        ),
        ([*PICKER, "--workers", "2"], "--workers is 2, but with --picker-name there is one process"),
        ([*PICKER, "--recycle-rss-mb", "900"], "--recycle-rss-mb is 900, but with --picker-name there is one process"),
        (
            [*PICKER, "--listen", "[::]:9003"],
            "--listen is '[::]:9003'; with --picker-name allowed is ADDRESS:0: the Services say the ports",
        ),
        (["--endpoints", "10.0.0.1"], "--endpoints: '10.0.0.1' is not ip:port"),
        (["--endpoints", "10.0.0.1:80,10.0.0.1:80"], "--endpoints: endpoint 2 is 10.0.0.1:80 again"),
        (["--endpoints", "pod-1:80"], "--endpoints: 'pod-1' is not an IP address; host names are not resolved"),
        (["--endpoints-file", "{tmp}/missing.yaml"], "--endpoints-file {tmp}/missing.yaml: no such file"),
        ([*ONE, "--config-file", "{tmp}/missing.yaml"], "--config-file {tmp}/missing.yaml: no such file"),
        (
            [*ONE, "--config-file", "{tmp}/c.yaml", "--policy", "random"],
            "--config-file and --policy exclude each other",
        ),
        ([*ONE, "--policy", "best"], "argument --policy: invalid choice: 'best' (choose from "),
        ([*ONE, "--engine", "wllm"], "argument --engine: invalid choice: 'wllm' (choose from "),
        ([*ONE, "--eds-dir", "{tmp}/missing"], "--eds-dir {tmp}/missing: no such directory"),
        ([*ONE, "--pool-name", " "], "--pool-name is ' '; allowed is any name that is not empty"),
        *(
            ([*ONE, flag, value], f"{flag} is {value!r}; allowed is ADDRESS:PORT, IPv6 in brackets, port 0-65535")
            for flag in ("--listen", "--admin")
            for value in ("9002", ":9002", "::1:9002", "[::1]", "[::1:9002", "a:b", "127.0.0.1:65536", "127.0.0.1:-1")
        ),
        *(
            ([*ONE, flag, value], f"argument {flag}: {value!r}; allowed is a number of seconds from 0 to 86400")
            for flag in ("--drain-timeout", "--shutdown-notice")
            for value in ("-1", "nan", "inf", "soon", "86401")
        ),
        *(
            (
                [*ONE, "--workers", value],
                f"argument --workers: {value!r}; allowed is a number of workers from 1 to 64",
            )
            for value in ("0", "65", "-1", "two", "1.5", "")
        ),
        (
            [*ONE, "--workers", "3", "--listen", "[::]:65534"],
            "--listen is '[::]:65534' with --workers 3: the last port would be 65536",
        ),
        (
            [*ONE, "--workers", "3", "--listen", "[::]:9088"],
            "--admin is '[::]:9090', but --workers 3 need ports 9088 to 9090",
        ),
        ([*ONE, "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        ([*ONE, "--log-level", "loud"], "argument --log-level: invalid choice: 'loud' (choose from "),
        ([*ONE, "--colour", "red"], "unrecognized arguments: --colour red"),
        ([*ONE, "--tls-cert", "{tls}/server.crt"], "--tls-cert and --tls-key go together"),
        ([*ONE, "--tls-key", "{tls}/server.key"], "--tls-cert and --tls-key go together"),
        ([*ONE, "--client-ca", "{tls}/ca.crt"], "--client-ca needs --tls-cert and --tls-key"),
        (
            [*ONE, "--tls-cert", "{tmp}/no.crt", "--tls-key", "{tls}/server.key"],
            "--tls-cert {tmp}/no.crt: cannot be read: No such file",
        ),
        (
            [*ONE, "--tls-cert", "{tls}/server.crt", "--tls-key", "{tls}/client.key"],
            "--tls-cert {tls}/server.crt with --tls-key {tls}/client.key: a PEM certificate and its unencrypted PEM",
        ),
        (
            [*ONE, "--tls-cert", "{tls}/README.md", "--tls-key", "{tls}/server.key"],
            "--tls-cert {tls}/README.md with --tls-key {tls}/server.key: a PEM certificate and its unencrypted PEM key",
        ),
        (
            [*ONE, "--tls-cert", "{tls}/server.crt", "--tls-key", "{tls}/server.key", "--client-ca", "{tls}/README.md"],
            "--client-ca {tls}/README.md: a PEM file of certificates is needed",
        ),
        ([*ONE, "--engine-api-key-env", "NO_SUCH_VARIABLE"], "--engine-api-key-env: bearer token: environment variabl"),
        (
            [*ONE, "--engine-api-key-file", "{tmp}/no-key"],
            "--engine-api-key-file: bearer token: cannot read {tmp}/no-key: No such file",
        ),
        (
            [*ONE, "--engine-api-key-file", "{tmp}/k", "--engine-api-key-env", "K"],
            "--engine-api-key-file and --engine-api-key-env exclude each other",
        ),
    ],
)
def test_wrong_flags(flags: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.yaml").write_text("endpoints: []")
    (tmp_path / "c.yaml").write_text("")
    said = problems([flag.format(tmp=tmp_path, tls=TLS) for flag in flags], capsys)
    assert text.format(tmp=tmp_path, tls=TLS) in said


def test_all_problems_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = problems(["--listen", "x", "--admin", "y", "--tls-cert", "z", "--endpoints", "a,b"], capsys)
    assert said.count("\n") == 4


def test_what_is_taken(tmp_path: Path) -> None:
    flags = "--endpoints 10.0.0.1:8000,[fd00::1]:8000 --engine sglang --listen [::1]:1 --admin 127.0.0.1:2 "
    flags += f"--pool-name llama --drain-timeout 1.5 --shutdown-notice 5 --seed 7 --eds-dir {tmp_path} "
    flags += f"--tls-cert {TLS}/server.crt --tls-key {TLS}/server.key --client-ca {TLS}/ca.crt"
    options = options_of(parser().parse_args(flags.split()))
    assert [(one.address, one.engine) for one in options.endpoints] == [
        ("10.0.0.1:8000", "sglang"),
        ("[fd00::1]:8000", "sglang"),
    ]
    assert (options.listen, options.admin) == ("[::1]:1", ("127.0.0.1", 2))
    assert (options.drain_s, options.notice_s, options.seed, options.pool) == (1.5, 5.0, 7, "llama")
    assert options.tls is not None and options.tls.certificates.files.client_ca == (TLS / "ca.crt").read_bytes()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("poolpilot")


def test_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "Exit codes: 0 stopped by a signal, 1" in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")


def test_an_encrypted_key_asks_no_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OpenSSL would ask for the password on the terminal, and hang."""
    shutil.copy(TLS / "server.crt", tmp_path)
    (tmp_path / "server.key").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        "MIHeMEkGCSqGSIb3DQEFDTA8MBsGCSqGSIb3DQEFDDAOBAhQ0Jm2VJQ5/QICCAAw\n"
        "HQYJYIZIAWUDBAEqBBAAAAAAAAAAAAAAAAAAAAAABIGQAAAAAAAAAAAAAAAAAAAA\n"
        "-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    said = problems([*ONE, "--tls-cert", f"{tmp_path}/server.crt", "--tls-key", f"{tmp_path}/server.key"], capsys)
    assert "its unencrypted PEM key are needed" in said

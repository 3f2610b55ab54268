"""`poolpilot config`: exit codes, and what is printed for good and bad files."""

from __future__ import annotations

import io

import pytest

from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import POLICIES, policy_config
from poolpilot_picker.config_command import main
from poolpilot_picker.routing.registry import default_registry

GOOD = (
    "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
)


def test_check_says_ok_with_the_profile(tmp_path, capsys):
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    assert main(["check", str(file)]) == 0
    said = capsys.readouterr()
    assert f"{file}: ok (profile default: queue-scorer × 1, picker max-score-picker)\n" in said.out
    assert f"warning: {file}:1:13: apiVersion: inference.networking.x-k8s.io/v1alpha1 is an old name" in said.out
    assert said.err == ""


def test_check_says_every_problem_of_every_file(tmp_path, capsys):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(GOOD + "plugin: []\nfeatureGates: [x]\n")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"kind: \xff")
    assert main(["check", str(bad), str(good), str(tmp_path / "none.yaml"), str(binary), str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        (
            f"{bad}:4:1: plugin: unknown field. Allowed: plugins, kind, poolpilot, apiVersion, schedulingProfiles, "
            "saturationDetector, flowControl, featureGates, parser, dataLayer, requestHandler"
        ),
        (
            f'{bad}:5:16: featureGates[0]: "x" is not a known feature gate. Allowed: flowControl, '
            "haPopulateNonLeaderDatastore, enableLegacyMetrics, dataLayer"
        ),
        f"{tmp_path}/none.yaml: No such file or directory",
        f"{binary}: byte 6 is not UTF-8",
        f"{tmp_path}: Is a directory",
    ]
    assert f"{good}: ok" in said.out


def test_check_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert main(["check", "-"]) == 0
    assert "-: ok" in capsys.readouterr().out


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_printed_loads_to_the_same(policy, capsys):
    assert main(["default", "--policy", policy]) == 0
    printed = capsys.readouterr().out
    registry = default_registry()
    again, short = load(printed, registry, "a"), load(policy_config(policy), registry, "a")
    assert again == short
    assert again.warnings == ()


def test_show_writes_every_value_of_a_file_out(tmp_path, capsys):
    file = tmp_path / "f.yaml"
    file.write_text(
        """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: label-selector-filter
    name: "fast: ones"
    parameters: {matchExpressions: [{key: gpu, operator: In, values: [h100, "1"]}]}
  - type: utilization-filter
    parameters: {conditions: [{metric: waiting-queue, maxValue: 3}]}
  - type: load-aware-scorer
  - type: fcfs-ordering-policy
schedulingProfiles:
  - name: "yes"
    plugins: [{pluginRef: "fast: ones"}, {pluginRef: load-aware-scorer, weight: 0.1}]
poolpilot:
  receipts: {header: true}
  fallbacks: {maxNumOfEndpoints: 3}
  stepModels:
    profiles: {mine: {stepMs: 1, sequenceMs: 2e-5, contextMs: 3, tokenMs: 4, token2Ms: 1e-7}}
  stripRequestHeaders: [x-secret]
"""
    )
    assert main(["show", str(file)]) == 0
    printed = capsys.readouterr().out
    again, first = load(printed, default_registry(), "f"), load(file.read_text(), default_registry(), "f")
    assert again.settings == first.settings
    assert again.profile == first.profile
    assert again.profile.name == "yes"


def test_plugins_lists_types_with_parameters(capsys):
    assert main(["plugins", "load-aware-scorer", "by-label", "latency-scorer"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "load-aware-scorer (scorer): requests waiting, against a threshold; at most 0.5",
        "    threshold: an integer, default 128; queue length that scores 0; 0 and less mean 128",
        "label-selector-filter (filter): keeps endpoints that a Kubernetes label selector selects",
        "    older names: by-label, by-label-selector",
        "    matchLabels: a mapping of text, default {}; labels with exactly these values",
        "    matchExpressions: a list of a mapping, default []; In, NotIn, Exists, DoesNotExist",
        (
            "latency-scorer (scorer): not supported yet: remove it, or use predicted-finish-scorer, which predicts "
            "latency without a sidecar"
        ),
    ]


def test_plugins_lists_all(capsys):
    assert main(["plugins"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{plugin_type.name} (" in f"\n{printed}" for plugin_type in default_registry())


def test_an_unknown_plugin_type(capsys):
    assert main(["plugins", "nope"]) == 2
    assert "nope is not a known plugin type" in capsys.readouterr().err


def test_a_wrong_subcommand(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["chek"])
    assert caught.value.code == 2
    assert "check" in capsys.readouterr().err

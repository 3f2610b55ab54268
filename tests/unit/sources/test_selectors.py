"""The index of selectors answers as a comparison with every pool would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolpilot_kube.objects import ObjectMeta, Pod
from poolpilot_picker.sources.selectors import SelectorIndex

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


def pod(namespace: str, labels: dict[str, str]) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", namespace=namespace, labels=labels))


@given(
    st.lists(st.tuples(st.sampled_from(["n", "m"]), st.sampled_from("pqr"), st.none() | LABELS), max_size=12),
    st.sampled_from(["n", "m"]),
    LABELS,
)
def test_any_pools(changes: list[tuple[str, str, dict[str, str] | None]], namespace: str, has: dict[str, str]) -> None:
    index, pools = SelectorIndex(), dict[tuple[str, str], dict[str, str]]()
    for where, name, labels in changes:
        index.set((where, name), labels)
        pools[where, name] = labels or {}
    wanted = sorted(
        key for key, labels in pools.items() if labels and key[0] == namespace and labels.items() <= has.items()
    )
    assert sorted(index.matching(pod(namespace, has))) == wanted
    assert index.matching(None) == []

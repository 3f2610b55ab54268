"""Rights, from the API server's own log of all tests before: each role used what it was given, and lacked nothing.

Runs last (conftest.py). Where only some of the tests were chosen, or one failed, what was not used says nothing.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cluster_audit import ROLES, Asked, role_of
from poolpilot_kube import cleanup
from poolpilot_kube.doctor.reading import RIGHTS, RIGHTS_CLUSTER
from poolpilot_operator import rights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster_stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

HERE: Final = Path(__file__)
_BOTH: Final = ("list", "delete")


def granted(rules: Iterable[rights.Rule]) -> set[Asked]:
    return {Asked(rule.group, name, verb) for rule in rules for name in rule.resources for verb in rule.verbs}


GRANTED: Final = {
    # The operator holds what it grants to pickers; that is what it uses these for.
    "operator": granted((*rights.OPERATOR, *rights.OPERATOR_HOME, *rights.OPERATOR_CLUSTER)) - granted(rights.PICKER),
    "picker": granted(rights.PICKER),
    "test": {Asked(group, name, "list") for group, names in (*RIGHTS, *RIGHTS_CLUSTER) for name in names},
    "cleanup": {
        *(Asked(one.group, one.plural, verb) for one in (*cleanup.NAMESPACED, *cleanup.CLUSTER) for verb in _BOTH),
        *(Asked(one.group, one.plural, verb) for one, verbs in cleanup.ALSO for verb in verbs),
        # In the release's namespace: its Picker, and the operator's end.
        Asked("poolpilot.dev", "pickers", "delete"),
        Asked("apps", "deployments/scale", "patch"),
    },
    "standalone": {Asked("", "pods", "list"), Asked("", "pods", "watch")},
}
"""What the charts and the operator give to each role."""


def left_out(session: pytest.Session) -> list[tuple[str, str]]:
    """Tests of this folder, by file and name, that do not run in this session."""
    run = {(one.path.name, getattr(one, "originalname", one.name)) for one in session.items}
    written = {
        (path.name, node.name)
        for path in HERE.parent.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    return sorted(written - run)


async def test_nobody_was_refused_anything(cluster: Stage) -> None:
    """Also pods that drain, operators that end, and those of releases that went."""
    assert {role_of(one.account) for one in cluster.audit.ours()} <= set(ROLES)
    assert cluster.audit.unexpected() == []


@pytest.mark.parametrize("role", ROLES)
async def test_what_a_role_was_given_it_used(role: str, cluster: Stage, request: pytest.FixtureRequest) -> None:
    """Exactly, over all tests; the rest would be a right too many."""
    used = {one.asked for one in cluster.audit.ours() if role_of(one.account) == role and not one.forbidden}
    given = GRANTED[role] | (granted(rights.PICKER) if role == "operator" else set())
    assert used <= given, "the rights come from elsewhere, or the list of them is wrong"
    if missing := left_out(request.session):
        pytest.skip(f"only of all tests together; {len(missing)} are left out, first {' '.join(missing[0])}")
    if request.session.testsfailed:
        pytest.skip("a test before failed")
    assert GRANTED[role] - used == set()

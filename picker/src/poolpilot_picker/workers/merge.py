"""Pages of several workers → one: readiness, endpoints, decisions. Pure functions of what the workers told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMMED_FIELDS: Final = ("in_flight",)
"""Of an endpoint's row: each worker counts its own. The rest all of them know alike; the first to answer tells it."""


def merged_readiness(
    told: Mapping[int, Mapping[str, Any]], states: Mapping[int, str], *, complete: bool, draining: bool
) -> dict[str, Any]:
    """Ready while one worker is, once all of them have been (`complete`): the data plane looks at each port itself.

    `told`: readiness by worker that answered; `states`: of all. Not alive when a worker says that only a restart can
    help, or is ready and does not answer.
    """
    detail: dict[str, str] = {}
    alive = True
    for index, state in states.items():
        page = told.get(index)
        if state != "ready":
            detail[f"worker {index}"] = f"is {state}"
        elif page is None:
            detail[f"worker {index}"] = "does not answer"
            alive = False
        else:
            alive = alive and bool(page["alive"])
    # What all say is said once; what only some say, with who says it.
    texts: dict[tuple[str, str], list[int]] = {}
    for index, page in told.items():
        for subject, text in page["detail"].items():
            texts.setdefault((subject, text), []).append(index)
    for (subject, text), who in texts.items():
        name = subject if len(who) == len(told) else f"{subject} (worker {', '.join(map(str, who))})"
        detail[name] = text
    serving = [index for index, page in told.items() if page["ready"] and states.get(index) == "ready"]
    ready = complete and not draining and bool(serving)
    if draining:
        detail["draining"] = "shutting down: no new streams are taken"
    elif not complete:
        detail["starting"] = "not all workers have been ready yet"
    pools = {name: ready for page in told.values() for name in page["pools"]}
    return {"ready": ready, "alive": alive, "detail": detail, "pools": pools}


def merged_endpoints(told: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by pool, as the first worker tells them, with in-flight counts summed over the workers."""
    pools: dict[str, dict[str, dict[str, Any]]] = {}
    for index in sorted(told):
        for pool, rows in told[index]["pools"].items():
            seen = pools.setdefault(pool, {})
            for row in rows:
                # A draining endpoint may share its address with the one that came after it.
                known = seen.setdefault(
                    f"{row['endpoint']} {row['draining']}", {**row, **dict.fromkeys(SUMMED_FIELDS, 0.0)}
                )
                for field in SUMMED_FIELDS:
                    known[field] += row[field]
    return {"pools": {pool: list(rows.values()) for pool, rows in pools.items()}, "workers": sorted(told)}


def merged_decisions(told: Mapping[int, Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """The newest `limit` receipts of all, each with its worker."""
    found = [{"worker": index, **receipt} for index, page in told.items() for receipt in page["decisions"]]
    found.sort(key=lambda receipt: -receipt["at_ms"])
    return {"decisions": found[:limit]}

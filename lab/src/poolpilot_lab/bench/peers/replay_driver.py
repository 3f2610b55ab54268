"""Run by the interpreter that has Dynamo: replays a trace offline, once per routing mode. JSON in, JSON out."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """`argv[1]`: {"trace", "workers", "blocks", "block_tokens", "batch_tokens", "trace_block_tokens", "out"}."""
    from dynamo import _core as core  # type: ignore[import-not-found]

    asked = json.loads(sys.argv[1])
    engine = core._normalize_mocker_config(
        {
            "engine": {
                "num_gpu_blocks": asked["blocks"],
                "block_size": asked["block_tokens"],
                "max_num_batched_tokens": asked["batch_tokens"],
            }
        }
    )
    found = {}
    for mode in ("round_robin", "kv_router"):
        result = core.run_mocker_trace_replay(
            [asked["trace"]],
            engine,
            num_workers=asked["workers"],
            router_mode=mode,
            router_config=core.KvRouterConfig() if mode == "kv_router" else None,
            trace_block_size=asked["trace_block_tokens"],
            capture_planner_details=False,
        )
        said = result.summary() if callable(result.summary) else result.summary
        found[mode] = json.loads(said) if isinstance(said, str) else dict(said)
    with open(asked["out"], "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()

"""`python -m poolpilot_operator`."""

from __future__ import annotations

from poolpilot_operator.main import main

if __name__ == "__main__":
    raise SystemExit(main())

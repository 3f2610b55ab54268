"""`python -m poolpilot`, the same as the `poolpilot` command."""

import sys

from poolpilot.main import main

sys.exit(main())

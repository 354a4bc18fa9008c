"""`python -m rlx.cli` is `rlx`."""

from __future__ import annotations

import sys

from rlx.cli import main

sys.exit(main())

"""``python -m vje`` is ``vje``."""

import sys

from vje.cli.main import main

sys.exit(main())

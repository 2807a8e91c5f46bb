"""``python -m vje`` is ``vje``."""

import os
import sys
from contextlib import suppress

from vje.cli.main import main

status = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # Threads of a process group that DistributedDataParallel used are still there. One that lets go of a tensor while
    # Python takes itself apart would abort the process, and torchrun would call a finished training failed.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)
sys.exit(status)

"""``python -m dledger.door_process``: how a node starts one."""

import sys

from dledger.door_process.process import main

sys.exit(main())

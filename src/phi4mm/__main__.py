"""``python -m phi4mm``."""

import sys

from phi4mm.cli.main import main

sys.exit(main())

"""`python -m snip` is the command `snip`."""

import sys

from snip.cli import main

sys.exit(main())

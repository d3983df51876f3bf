"""`python -m handlers` is `parley`, also where the package isn't installed."""

import sys

from handlers.cli import main

sys.exit(main())

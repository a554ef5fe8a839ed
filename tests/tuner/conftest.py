"""Lets tests and worker processes import the helpers beside them (`problems`, `fake_backend`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

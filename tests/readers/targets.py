"""Readers of files from others, each with valid files of the library's own making, one of which a stranger wrote.

What such a file holds may end a reader in an OSError or a ValueError that names it, and in nothing else. The seeds are
the valid files. ``python -m tests.readers.fuzz`` looks for others, and a test tries a few hundred.
"""

from __future__ import annotations

from tests.readers.imported import IMPORTED
from tests.readers.own import OWN
from tests.readers.pages import PAGES

TARGETS = {**IMPORTED, **OWN, **PAGES}

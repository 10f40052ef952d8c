"""Where the files are that tests read, however deep a test lies."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
GOLDEN_PAGES = sorted((GOLDEN / "pages").glob("*.html"))

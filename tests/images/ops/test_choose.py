"""`Choose` leaves pixels alone: tests/stream/test_choose.py has what it does to columns."""

from hypothesis import strategies as st

from tests.images.ops.every import Case
from tpufeed.images import Choose

CASES = [Case(Choose("captions"), 0x6EF1444A)]
MADE = [st.builds(Choose, st.text(min_size=1, max_size=9), st.booleans())]
SAME = [(Choose("a"), Choose("a", True))]
REFUSED = [(Choose, {"column": value}, "column is") for value in ("", 3, None)]

"""Where two runs part: the first round, client and tensor.

lines.py             the two records, line by line
recording_engine.py  an engine that keeps every client's update
replay.py            both runs again, side by side, up to the round where they part
first_difference.py  that round: what went in otherwise, and the first client whose update came out otherwise
gaps.py              how far two tensors are apart
find_difference.py   all of it, as one `Parting`
diff_text.py         the same in plain English
"""

from atoll.analysis.diff.diff_text import words
from atoll.analysis.diff.find_difference import Parting, must_agree, parting

__all__ = ["Parting", "must_agree", "parting", "words"]

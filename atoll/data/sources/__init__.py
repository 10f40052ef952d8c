"""Where examples come from: one builder for each data set."""

from atoll.data.sources.breast_cancer import breast_cancer
from atoll.data.sources.diabetes import diabetes
from atoll.data.sources.digits import digits
from atoll.data.sources.fcube import fcube
from atoll.data.sources.library_text import library_text
from atoll.data.sources.synthetic import synthetic

__all__ = ["breast_cancer", "diabetes", "digits", "fcube", "library_text", "synthetic"]

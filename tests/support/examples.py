"""How many examples hypothesis tries where each takes long: a fifth of the profile's (see conftest.py)."""

from hypothesis import settings

few_examples = settings(max_examples=settings().max_examples // 5)

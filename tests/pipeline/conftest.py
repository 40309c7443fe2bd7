"""Property tests here have no deadline per example: machines are busy, and the examples small."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None, max_examples=100)
settings.load_profile("no deadline")

"""Settings of all tests."""

from hypothesis import settings

# A loaded machine is slow, not wrong; and a build must not fail by chance.
settings.register_profile("hetinfer", deadline=None, derandomize=True, database=None)
settings.load_profile("hetinfer")

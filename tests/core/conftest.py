"""Settings of the property tests in this folder."""

from hypothesis import settings

# A busy machine is not a counterexample: how long one example takes says nothing about a pure function.
settings.register_profile("core", parent=settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("core")

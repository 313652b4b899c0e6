"""One profile of hypothesis for every test: deterministic, and blind to how busy the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    derandomize=True,  # the same examples at every run; a longer search is started by hand
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("house")

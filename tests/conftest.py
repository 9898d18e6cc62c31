"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes on a busy machine says nothing about the code.
settings.register_profile("routing_gym", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("routing_gym")

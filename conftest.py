"""What all Python tests share: property tests are never failed for being slow. The machines that run them may be loaded."""

from hypothesis import HealthCheck, settings

settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

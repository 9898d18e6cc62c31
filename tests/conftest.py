"""Settings of all tests."""

import signal

from hypothesis import HealthCheck, settings

# How long an example takes on a busy machine says nothing about the code.
settings.register_profile("routing_gym", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("routing_gym")

# A shell that starts them in the background has interrupts ignored, by the commands that they start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

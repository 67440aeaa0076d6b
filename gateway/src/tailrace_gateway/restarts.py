"""When a process that ended is started again, and how its end is told: the same for `tailrace run` and in a pod. Pure, standard library only."""

import signal

EXIT_USAGE = 64
BACK_OFF_S = (0.05, 5.0)
HEALTHY_S = 5.0
"""A process that lived this long is restarted at once, with the first back-off."""


def next_delay(delay_s: float, lived_s: float) -> float:
    """Seconds until the next start: the first delay after a healthy life, else twice the last one, within bounds."""
    return BACK_OFF_S[0] if lived_s >= HEALTHY_S else min(delay_s * 2, BACK_OFF_S[1])


def fate(code: int) -> str:
    """How it ended; `code` as subprocess has it: negative for a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

"""Memory of processes, from /proc. IO: reads /proc; a process that is gone is a KeyError or FileNotFoundError."""

from pathlib import Path


def status_mb(pid: int, field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (highest so far) of one process, in MB of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return round(int(value.split()[0]) * 1024 / 1e6, 1)
    raise KeyError(field)

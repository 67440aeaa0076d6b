"""Memory and CPU time of processes, from /proc. IO: reads /proc; a process that is gone is a KeyError or FileNotFoundError."""

import os
from pathlib import Path


def status_mb(pid: int, field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (highest so far) of one process, in MB of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return round(int(value.split()[0]) * 1024 / 1e6, 1)
    raise KeyError(field)


def cpu_s(pid: int) -> float:
    """CPU time of one process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

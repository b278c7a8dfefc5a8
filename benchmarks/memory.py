"""How much memory a piece of work takes at its peak, measured in a process of its own."""

import resource
import subprocess
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def reset_peak() -> float:
    """Forget the peak so far (where the system can) and return the memory in use now, in MiB."""
    if RESET.exists():
        RESET.write_text("5")
        return _status_mib("VmRSS")
    return peak_mib_since_reset()


def peak_mib_since_reset() -> float:
    """Return the most memory the process has had since the reset, in MiB."""
    if STATUS.exists():
        return _status_mib("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_mib_in_new_process(script: str, *arguments: str) -> float:
    """Run `script --memory ARGUMENTS` in a new process; its last line is the peak in MiB."""
    command = [sys.executable, script, "--memory", *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.splitlines()[-1])


def _status_mib(field: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024

"""Other processes, waited for without guessing how long they take."""

import os
import select
import signal


def ends(pid: int, within: float = 5.0) -> bool:
    """Wait until a process is dead, a zombie included; returns whether it is, within so many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within)[0])
    finally:
        os.close(descriptor)


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead."""
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)

"""Other processes, waited for without guessing how long they take."""

import os
import select
import signal


def ends(pid: int) -> bool:
    """Wait until a process is dead, a zombie included; returns whether it is, within five seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5.0)[0])
    finally:
        os.close(descriptor)


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead."""
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)

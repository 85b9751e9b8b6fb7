"""Names of the NOTIFY channels: one per queue, four for control."""

import hashlib

CANCEL_CHANNEL = "awa:cancel"
"""Payload ``{"job_id": …, "run_lease": …}``: this attempt is to be cancelled."""

LEADER_CHANNEL = "awa:leader"
"""A leader resigned: candidates may stand at once."""

STORAGE_CHANNEL = "awa:storage"
"""The storage transition changed state."""

CALLBACK_CHANNEL = "awa:callback"
"""A callback was resolved."""

DUE_CHANNEL = "awa:due"
"""A deferred job is due earlier than the promoter meant to look. No payload."""

RESERVED_NAMES = frozenset({"cancel", "leader", "storage", "callback", "due"})
"""Queue names whose plain channel would be one of the control channels."""

CHANNEL_BYTES = 63
"""Postgres cuts identifiers, and refuses channel names, beyond this many bytes."""

_PLAIN = "awa:"
_HASHED = "awa#"


def queue_channel(queue: str) -> str:
    """Name the channel on which a queue's new work is announced.

    The plain name is ``awa:<queue>``. A queue whose plain name is longer than Postgres allows, or is a control channel,
    gets ``awa#`` and the MD5 of its name in hex instead: never cut, because a cut name could split a character or be
    shared by two queues. MD5 because the database computes the same name and has it everywhere; a collision would only
    cost a needless wake-up.

    Args:
        queue: a valid queue name (up to 200 bytes).

    Returns:
        A channel of at most 63 bytes that is none of the control channels.

    Source: facts I28, I28a.
    """
    name = queue.encode()
    if queue in RESERVED_NAMES or len(_PLAIN) + len(name) > CHANNEL_BYTES:
        return _HASHED + hashlib.md5(name, usedforsecurity=False).hexdigest()
    return _PLAIN + queue

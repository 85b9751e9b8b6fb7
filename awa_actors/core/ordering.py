"""Where an ordering key sends a job."""

from awa_actors.errors import ValidationError

_OFFSET = 14695981039346656037
_PRIME = 1099511628211
_MASK = 0xFFFF_FFFF_FFFF_FFFF


def ordering_hash(ordering_key: bytes) -> int:
    """Hash an ordering key to 64 bits: multiply, then ADD each byte (not xor, so this is not FNV-1a).

    Source: fact I22. Producers in other languages and in SQL compute the same number, so it may never change.
    """
    hashed = _OFFSET
    for byte in ordering_key:
        hashed = (hashed * _PRIME + byte) & _MASK
    return hashed


def shard_of(ordering_key: bytes, shards: int) -> int:
    """Choose the shard of a queue whose jobs keep their order for this key.

    Args:
        ordering_key: the key; an empty one is legal here and has its own fixed shard.
        shards: how many shards the queue has, at least 1.

    Returns:
        A number from 0 to ``shards - 1``.

    Raises:
        ValidationError: `shards` is below 1.

    Source: fact I22.
    """
    if shards < 1:
        raise ValidationError(f"a queue has at least 1 shard, not {shards}", path="$.shards")
    return ordering_hash(ordering_key) % shards

"""The four times of the leader's lease, and the rule that ties them together."""

import attrs

from awa_actors.core.validation import positive_seconds
from awa_actors.errors import ValidationError


@attrs.frozen
class LeaseTiming:
    """How long a lease lasts, how long its holder believes in it, and how often it is renewed.

    A holder must stop trusting its lease before anybody else may take it, and must have had two chances to renew before
    that; otherwise ordinary latency costs a healthy leader its term.

    Args:
        lease: seconds from a renewal until others may take over, by the database's clock.
        trust: seconds from SENDING a renewal until the holder gives up by itself, by its own monotonic clock.
        renew: seconds between renewals.
        margin: seconds that two round trips and a late timer may take.

    Raises:
        ValidationError: a setting is not a finite number above 0, or not ``lease > trust > 2 * renew + margin``.

    Source: field report 002.
    """

    lease: float = 10.0
    trust: float = 7.0
    renew: float = 2.0
    margin: float = 1.0

    def __attrs_post_init__(self) -> None:
        """Check the settings."""
        for name, value in attrs.asdict(self).items():
            positive_seconds(value, path=f"$.{name}")
        if self.lease <= self.trust:
            raise ValidationError(
                f"lease ({self.lease} s) must be longer than trust ({self.trust} s): "
                "a holder has to stop before others start",
                path="$.lease",
            )
        if self.trust <= 2 * self.renew + self.margin:
            raise ValidationError(
                f"trust ({self.trust} s) must be longer than 2 * renew + margin ({2 * self.renew + self.margin} s): "
                "one late renewal must not end a term",
                path="$.trust",
            )

    def trusted_until(self, sent_at: float) -> float:
        """Tell until when a renewal that succeeds may be relied on.

        Args:
            sent_at: when the renewal was SENT (not answered), in seconds of a monotonic clock.

        Returns:
            A time on the same clock.
        """
        return sent_at + self.trust

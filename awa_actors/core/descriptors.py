"""Descriptors: what people should know about a queue or a kind, and the digest by which two of them are told apart."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import blake3

from awa_actors.core.json_text import canonical_json
from awa_actors.core.text import shown
from awa_actors.core.validation import check_tags
from awa_actors.errors import ValidationError

LIMITS = {"display_name": 200, "description": 2000, "owner": 200, "docs_url": 2048}
"""Characters of each text."""


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    return check_tags(tags)


@attrs.frozen
class Descriptor:
    """What people should know about a queue or a kind; `extra` is a JSON object of their own.

    Raises:
        ValidationError: a text is blank, too long or not text, there are too many tags, or `extra` is not JSON.

    Source: fact M43.
    """

    name: str
    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    docs_url: str | None = None
    tags: tuple[str, ...] = attrs.field(default=(), converter=_checked_tags)
    extra: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Check the texts, and that the whole can be stored."""
        for field, limit in LIMITS.items():
            text = getattr(self, field)
            if text is None:
                continue
            if not isinstance(text, str) or not text.strip():
                raise ValidationError(f"must be text that is not blank, not {shown(text)}", path=f"$.{field}")
            if len(text) > limit:
                raise ValidationError(f"has {len(text)} characters, at most {limit} are allowed", path=f"$.{field}")
        if not isinstance(self.extra, Mapping):
            raise ValidationError(f"must be an object, not {shown(self.extra)}", path="$.extra")
        canonical_json(self.value())

    def value(self) -> dict[str, Any]:
        """Give what is stored of it, as plain JSON values: only what was said."""
        said = {field: getattr(self, field) for field in LIMITS}
        said |= {"tags": list(self.tags), "extra": dict(self.extra)}
        return {field: value for field, value in said.items() if value}

    @property
    def digest(self) -> str:
        """BLAKE3 of the canonical JSON, in hex: the same in every process that says the same."""
        return blake3.blake3(canonical_json(self.value())).hexdigest()

"""The kind of a job, derived from the name of its args class."""


def derive_kind(class_name: str) -> str:
    """Turn a CamelCase class name into the snake_case kind that is stored.

    A separator goes before a capital that follows a small letter or a digit, and before the last capital of an acronym
    run when a small letter follows it. A name that is already snake_case comes back unchanged.

    Args:
        class_name: the class's ``__name__``.

    Returns:
        The kind, e.g. ``smtp_email`` for ``SMTPEmail``.

    Source: fact I4.
    """
    pieces = [class_name[:1]]
    for before, letter, after in zip(class_name, class_name[1:], class_name[2:] + " ", strict=False):
        starts_word = before.islower() or before.isdigit()
        ends_acronym = before.isupper() and after.islower()
        if letter.isupper() and (starts_word or ends_acronym):
            pieces.append("_")
        pieces.append(letter)
    return "".join(pieces).lower()

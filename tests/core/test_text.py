"""Text from outside made storable and bounded."""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.text import CAUSES_LISTED, ERROR_LIMIT, LEAVES_LISTED, error_text, shown, storable


class Mute:
    """An object that cannot be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class MuteError(Exception):
    """An exception that cannot be described."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Liar(str):
    """A string whose methods lie."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def __str__(self) -> str:
        return self


def caught(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as error:
        return error


def nested(depth: int) -> None:
    if depth == 0:
        raise ValueError("deep")
    nested(depth - 1)


def deep_error(depth: int) -> BaseException:
    try:
        nested(depth)
    except ValueError as error:
        return error
    raise AssertionError


def is_storable(text: str) -> bool:
    return type(text) is str and "\x00" not in text and text.encode().decode() == text


def test_plain_text_comes_back_as_it_is() -> None:
    assert storable("plain, ünïcode, 😀\n") == "plain, ünïcode, 😀\n"


def test_a_nul_and_a_lone_surrogate_become_replacement_characters() -> None:
    assert storable("a\x00b\ud800c") == "a\ufffdb\ufffdc"


def test_a_surrogate_pair_becomes_the_character_it_means() -> None:
    assert storable("\ud83d\ude00\x00") == "😀\ufffd"


def test_an_object_that_cannot_be_described_yields_a_sentence() -> None:
    assert storable(Mute()) == "[Mute whose str() fails]"
    assert storable(MuteError()) == "[MuteError whose str() fails]"


def test_a_string_that_lies_about_its_length_is_bounded_too() -> None:
    text = storable(Liar("x" * 10_000), 100)
    assert type(text) is str
    assert str.__len__(text) <= 100


def test_an_interrupt_from_the_keyboard_gets_through() -> None:
    class Interrupted:
        def __str__(self) -> str:
            raise KeyboardInterrupt

        __repr__ = __str__

    with pytest.raises(KeyboardInterrupt):
        storable(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        shown(Interrupted())


def test_five_megabytes_lose_their_middle() -> None:
    text = storable("begin" + "x" * 5_000_000 + "end", 200)
    assert len(text) == 200
    assert text.startswith("beginxxx")
    assert text.endswith("xxxend")
    assert "[middle cut: 5,000,008 characters in all]" in text


@given(st.text(st.characters(), max_size=300), st.integers(0, 320))
def test_any_text_becomes_storable_and_no_longer_than_the_limit(text: str, limit: int) -> None:
    result = storable(text, limit)
    assert is_storable(result)
    assert len(result) <= limit


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=50))
def test_text_that_is_storable_already_is_not_changed(text: str) -> None:
    assert storable(text) == text


def test_a_value_is_shown_on_one_bounded_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown(Mute()) == "<Mute whose repr() fails>"
    assert len(shown("x" * 1000)) <= 80
    assert shown(10**5000) == "<int whose repr() fails>"


def test_an_error_is_its_class_its_message_and_where_it_happened() -> None:
    lines = error_text(caught(ValueError("boom"))).splitlines()
    assert lines[0] == "ValueError: boom"
    assert lines[1].startswith(f'  File "{__file__}", line ')
    assert lines[1].endswith("in caught")
    assert lines[2] == "    raise exc"


def test_an_error_is_named_by_its_qualified_name() -> None:
    class Inner(Exception):
        pass

    expected = "test_an_error_is_named_by_its_qualified_name.<locals>.Inner"
    assert error_text(Inner("x")) == f"{expected}: x"
    assert error_text(Inner()) == expected


def test_only_the_innermost_ten_lines_of_a_traceback_are_kept() -> None:
    lines = error_text(deep_error(100)).splitlines()
    assert lines[:2] == ["ValueError: deep", "[97 outer frames cut]"]
    assert len(lines[2:]) == 10
    assert lines[-1] == '    raise ValueError("deep")'


def test_an_error_that_cannot_be_described_is_still_recorded() -> None:
    assert error_text(caught(MuteError())).startswith("MuteError: [MuteError whose str() fails]\n  File")


def test_an_error_with_unstorable_text_is_still_recorded() -> None:
    text = error_text(caught(ValueError("nul \x00, surrogate \udfff")))
    assert text.startswith("ValueError: nul \ufffd, surrogate \ufffd\n")
    assert is_storable(text)


def test_an_error_of_five_megabytes_keeps_its_message_and_its_place() -> None:
    text = error_text(caught(ValueError("x" * 5_000_000)))
    assert len(text) <= ERROR_LIMIT
    assert text.startswith("ValueError: xxx")
    assert text.endswith("    raise exc")


def test_a_group_lists_its_leaves_at_any_depth() -> None:
    inner = ExceptionGroup("inner", [KeyError("b"), OSError(2, "c")])
    group = BaseExceptionGroup("several", [caught(ValueError("a")), inner])
    lines = error_text(group).splitlines()
    assert lines[:4] == [
        "ExceptionGroup: several (2 sub-exceptions)",
        "- ValueError: a",
        "- KeyError: 'b'",
        "- FileNotFoundError: [Errno 2] c",
    ]
    assert lines[-1] == "    raise exc"


def test_a_group_of_many_leaves_says_how_many_more_there_are() -> None:
    text = error_text(ExceptionGroup("many", [ValueError(str(n)) for n in range(1000)]))
    assert text.count("\n- ValueError") == LEAVES_LISTED
    assert text.endswith(f"- [{1000 - LEAVES_LISTED} more errors]")


def test_a_group_of_base_exceptions_is_described_too() -> None:
    assert "- SystemExit: 3" in error_text(BaseExceptionGroup("stop", [SystemExit(3)]))


def test_a_group_nested_a_thousand_deep_is_described_too() -> None:
    error: Exception = ValueError("core")
    for _ in range(1000):
        error = ExceptionGroup("shell", [error])
    assert "- ValueError: core" in error_text(error)


def test_a_cause_is_named() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    assert error_text(error) == "ValueError: outer\ncaused by KeyError: 'inner'"


def test_a_context_is_named_unless_it_was_suppressed() -> None:
    error = ValueError("outer")
    error.__context__ = KeyError("inner")
    assert "caused by" in error_text(error)
    error.__suppress_context__ = True
    assert "caused by" not in error_text(error)


def test_a_cyclic_context_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert error_text(one) == "ValueError: one\ncaused by ValueError: other"


def test_a_long_chain_of_causes_is_bounded() -> None:
    error = ValueError("0")
    for n in range(1, 1000):
        outer = ValueError(str(n))
        outer.__cause__ = error
        error = outer
    assert error_text(error).count("caused by") == CAUSES_LISTED


def test_a_group_that_breaks_while_being_described_keeps_its_headline() -> None:
    class Broken(ExceptionGroup[Exception]):
        @property
        def exceptions(self) -> tuple[Exception, ...]:
            raise RuntimeError("no leaves")

    lines = error_text(Broken("broken", [ValueError("x")])).splitlines()
    assert lines[0].endswith("Broken: broken (1 sub-exception)")
    assert lines[1:] == ["[describing this error further failed]"]


def test_a_frame_without_source_is_one_line() -> None:
    code = compile("raise ValueError('made up')", "<made up>", "exec")
    with pytest.raises(ValueError, match="made up") as raised:
        exec(code, {})
    assert error_text(raised.value).splitlines()[-1] == '  File "<made up>", line 1, in <module>'
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == ""

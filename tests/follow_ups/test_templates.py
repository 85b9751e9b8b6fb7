from typing import Any

import pytest

import awa_actors as awa
from awa_actors.core.follow_up_template import DeclaredFollowUp

SCOPE = {
    "args": {"user": {"id": 7, "name": "Ada"}, "items": [{"sku": "a"}, {"sku": "b"}], "none": None},
    "job": {"id": 12, "attempt": 3},
    "outcome": {"name": "exhausted", "error": "no"},
}


def declared(args: Any, **fields: Any) -> DeclaredFollowUp:
    known: dict[str, Any] = {
        "application": "shop", "name": "n", "version": 1, "kind": "signup", "outcome": "completed",
        "enqueue": "audit", "queue": "audit", "args": args,
    }  # fmt: skip
    made = DeclaredFollowUp(**(known | fields))
    made.check()
    return made


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("${args.user.id}", 7),
        ("${ args.user }", {"id": 7, "name": "Ada"}),
        ("${args.items[1].sku}", "b"),
        ("${args.none}", None),
        ("user ${args.user.id} of ${args.user.name}: ${args.items}", 'user 7 of Ada: [{"sku": "a"}, {"sku": "b"}]'),
        ("$${args.user.id} costs $5", "${args.user.id} costs $5"),
        ({"a": ["${job.id}", 1, None], "b": {"c": "${outcome.error}"}}, {"a": [12, 1, None], "b": {"c": "no"}}),
        ("nothing to fill", "nothing to fill"),
    ],
)
def test_a_template_is_filled_with_values_of_their_own_type(template: Any, filled: Any) -> None:
    assert declared(template).render(SCOPE) == filled


@pytest.mark.parametrize("expression", ["user", "args..x", "args.", "job[0", "args.x + 1", "", "import os", "job.id)"])
def test_what_is_no_path_is_refused_when_it_is_declared(expression: str) -> None:
    with pytest.raises(awa.ValidationError) as refused:
        declared({"deep": [f"${{{expression}}}"]})
    assert refused.value.path == "$.deep[0]"


@pytest.mark.parametrize(
    "expression", ["args.user.age", "args.items[2]", "args.items.sku", "args.user.id.x", "job.x[0]"]
)
def test_a_job_without_the_value_is_an_error_that_names_the_place(expression: str) -> None:
    with pytest.raises(awa.ValidationError) as missing:
        declared({"to": f"${{{expression}}}"}).render(SCOPE)
    assert missing.value.path == "$.to"
    assert expression in str(missing.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"outcome": "started"}, "no outcome 'started'"),
        ({"version": 0}, "at least 1"),
        ({"options": {"colour": "red"}}, "unknown options colour"),
        ({"delivery": awa.Delivery.OUTBOX}, "for rescued follow-ups"),
    ],
)
def test_a_declaration_that_could_never_work_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(awa.UsageError, match=words):
        declared({}, **fields)


class TestCel:
    @pytest.fixture(autouse=True)
    def _extra(self) -> None:
        pytest.importorskip("cel")

    def test_expressions_compute(self) -> None:
        made = declared({"size": "${size(args.items) > 1 ? 'many' : 'one'}", "n": "${job.attempt + 1}"}, cel=True)
        assert made.render(SCOPE) == {"size": "many", "n": 4}

    def test_a_syntax_error_is_refused_when_it_is_declared(self) -> None:
        with pytest.raises(awa.ValidationError, match="not CEL") as refused:
            declared({"n": "${job. +}"}, cel=True)
        assert refused.value.path == "$.n"

    def test_a_missing_value_is_an_error(self) -> None:
        with pytest.raises(awa.ValidationError, match="cannot be evaluated"):
            declared({"n": "${args.nothing}"}, cel=True).render(SCOPE)


def test_cel_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cel", None)
    with pytest.raises(awa.UsageError, match=r"awa-actors\[cel\]"):
        declared({"n": "${job.id}"}, cel=True)


def test_a_registry_refuses_options_that_no_job_could_have() -> None:
    with pytest.raises(awa.ValidationError) as refused:
        awa.Registry().declare_follow_up("n", kind="k", outcome="completed", enqueue="audit", args={}, priority=9)
    assert refused.value.path == "$.priority"


def test_a_registry_refuses_a_name_twice() -> None:
    registry = awa.Registry()
    registry.declare_follow_up("n", kind="k", outcome="completed", enqueue="audit", args={})
    with pytest.raises(awa.AlreadyRegistered):
        registry.declare_follow_up("n", kind="k", outcome="retried", enqueue="audit", args={})

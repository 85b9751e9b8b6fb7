from awa_actors.core.backoff import LONGEST_DELAY
from awa_actors.core.outcome import Decision, Ending, Outcome, decide
from model.boundary import LONGEST_TEXT, ROWS, endings, expected, last

DECIDED = [(ending, decide(ending)) for ending in endings()]


def told(ending: Ending, decision: Decision) -> str:
    return f"{expected(ending).sentence}: {ending} -> {decision}"


def test_every_ending_is_recorded_as_its_rule_says() -> None:
    wrong = [
        told(ending, decision)
        for ending, decision in DECIDED
        if (decision.outcome, decision.fields.get("state")) != (expected(ending).outcome, expected(ending).state)
    ]
    assert not wrong, wrong[:3]


def test_every_rule_is_met() -> None:
    assert {expected(ending).sentence for ending, _ in DECIDED} == {row.sentence for row in ROWS}


def test_an_attempt_is_spent_unless_its_rule_says_otherwise() -> None:
    wrong = [
        told(ending, decision)
        for ending, decision in DECIDED
        if bool(decision.fields.get("uncount")) == expected(ending).counts and decision.fields
    ]
    assert not wrong, wrong[:3]


def test_no_attempt_beyond_the_budget_is_retried() -> None:
    wrong = [told(e, d) for e, d in DECIDED if d.outcome is Outcome.RETRIED and last(e)]
    assert not wrong, wrong[:3]


def test_whatever_is_recorded_can_be_stored() -> None:
    for ending, decision in DECIDED:
        error = decision.fields.get("error", "")
        error.encode()
        assert "\x00" not in error, told(ending, decision)
        assert len(error) <= LONGEST_TEXT
        assert 0 <= decision.fields.get("delay", 0.0) <= LONGEST_DELAY, told(ending, decision)


def test_every_failure_says_why() -> None:
    for ending, decision in DECIDED:
        if decision.fields.get("state") in ("failed", "retryable", "cancelled"):
            assert decision.fields["error"], told(ending, decision)
        if decision.fields.get("state") == "failed":
            assert decision.fields["terminal"], told(ending, decision)
            assert decision.fields["reason"], told(ending, decision)

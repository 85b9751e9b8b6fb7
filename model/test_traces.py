import pytest

from model.machines.callbacks import Callbacks
from model.machines.carry import Carry
from model.machines.lifecycle import Lifecycle
from model.machines.queue import Queue
from model.traces import CannotHappen, follow


def test_a_snoozed_job_is_promoted_and_claimed_again() -> None:
    script = [
        ("claim", (0, 0)),
        ("end", (0, 1, 0, "scheduled")),
        ("promote", (0,)),
        ("claim", (0, 0)),
        ("end", (0, 2, 0, "completed")),
    ]
    assert follow(Lifecycle(leases=2), script).jobs[0][:3] == ("completed", 2, 1)


def test_a_rescued_job_leaves_its_old_attempt_stale() -> None:
    script = [
        ("claim", (0, 0)),
        ("die", (0,)),
        ("rescue", (0,)),
        ("promote", (0,)),
        ("claim", (0, 1)),
        ("end", (0, 1, 0, "stale")),
    ]
    assert follow(Lifecycle(), script).jobs[0].owner == 1


def test_a_cancelled_attempt_ends_stale() -> None:
    script = [("claim", (0, 0)), ("cancel", (0,)), ("end", (0, 1, 0, "stale"))]
    assert follow(Lifecycle(), script).jobs[0].state == "cancelled"


def test_a_claim_nobody_heard_of_can_be_cancelled() -> None:
    script = [("claim_unheard", (0, 0)), ("cancel", (0,))]
    assert follow(Lifecycle(), script).jobs[0].state == "cancelled"


def test_a_callback_is_resolved_while_its_handler_waits() -> None:
    script = [
        ("claim", ()),
        ("register", ()),
        ("wait_inside", ()),
        ("call", (0, "resume", 1)),
        ("lock", (0,)),
        ("resolve", (0, "resume")),
        ("take_answer", ()),
        ("finish", ("completed",)),
    ]
    assert follow(Callbacks(), script).state == "completed"


def test_a_dead_letter_that_is_retried_keeps_its_run_lease() -> None:
    script = [("claim", (0, 0)), ("end", (0, 1, 0, "failed")), ("retry", (0,)), ("claim", (0, 1))]
    assert follow(Lifecycle(), script).jobs[0].lease == 2


def test_a_claim_is_rolled_back_and_the_next_has_the_same_run_lease_but_another_instance() -> None:
    script = [
        ("insert", (0, 0, "available")),
        ("commit", (0,)),
        ("claim", (0, 0, 0)),
        ("abort", (0,)),
        ("claim", (1, 1, 0)),
        ("commit", (1,)),
    ]
    state = follow(Queue(n_instances=2), script)
    assert sorted(state.told) == [(0, 1, 0), (0, 1, 1)]
    with pytest.raises(CannotHappen):
        follow(Queue(n_instances=2), [*script, ("complete", (0, 0, 1, 0))])


def test_a_completion_finds_a_lease_that_was_carried_twice() -> None:
    script = [
        ("start_claim", ()),
        ("finish_claim", ()),
        ("turn", ("leases",)),
        ("pick", ("lease",)),
        ("start_end", ("complete",)),
        ("carried", ()),
        ("finish_end", ("missed",)),
        ("look_again", ()),
        ("turn", ("leases",)),
        ("pick", ("lease",)),
        ("carried", ()),
        ("finish_end", ("missed",)),
        ("look_again", ()),
        ("finish_end", ("complete",)),
    ]
    assert follow(Carry(), script).answer == "complete"


def test_a_job_that_is_not_deferred_is_not_promoted() -> None:
    with pytest.raises(CannotHappen, match=r"step 2, promote\(0,\), is not possible"):
        follow(Lifecycle(), [("claim", (0, 0)), ("promote", (0,))])

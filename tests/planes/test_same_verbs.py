"""What tests of the queue plane say about its verbs holds in the canonical plane too: the same tests, other tables."""

import importlib.util
from pathlib import Path

import pytest
from canonical_plane import CanonicalPlane, TranslatedPlane

STORE = Path(__file__).parent.parent / "store"
SAME = {
    "test_claim": """
        test_a_claim_takes_jobs_in_the_order_they_were_inserted test_a_claim_makes_attempts
        test_a_batch_that_one_priority_cannot_fill_goes_on_with_the_next test_metadata_and_errors_count_too
        test_one_job_is_taken_however_large test_a_paused_queue_gives_nothing test_queues_do_not_mix
        test_the_deadline_is_the_jobs_then_the_overrides_then_the_claims test_a_dead_instance_is_given_nothing
        test_a_handler_sees_its_metadata_as_it_was_given test_a_claim_is_read_committed_whatever_the_session_says
    """,
    "test_complete": """
        test_an_older_attempt_is_stale test_the_same_numbers_from_another_instance_are_stale
        test_stale_members_do_not_spoil_a_batch test_results_go_with_their_jobs
        test_metadata_of_a_completing_attempt_becomes_history
    """,
    "test_done_by": "test_every_way_to_complete_a_job_keeps_its_instance",
    "test_settle": """
        test_a_retry_waits_and_counts test_a_snooze_does_not_count_and_is_counted_for_itself
        test_an_interrupted_attempt_is_available_at_once_and_does_not_count
        test_what_is_given_back_keeps_its_checkpoint test_progress_and_metadata_go_with_every_end
        test_the_lease_number_survives_every_way_back test_a_failed_job_is_kept_whole
        test_dead_letters_are_a_matter_of_the_queue test_a_stale_end_changes_nothing
        test_an_end_that_cannot_be_recorded_as_asked_is_recorded_as_failed
        test_a_stopping_instance_gives_back_what_it_holds test_a_worker_learns_which_of_its_attempts_are_lost
    """,
    "test_past": """
        test_snoozes_one_after_the_other_are_one_entry test_what_comes_between_begins_another_entry
        test_an_attempt_that_was_taken_away_ends_an_entry_too test_an_interruption_that_left_an_error_is_told_once
        test_what_never_began_leaves_no_entry test_a_parked_attempt_that_goes_on_is_told_with_its_end
        test_a_parked_attempt_that_begins_anew_is_told_with_who_wanted_it
        test_a_cancellation_names_the_attempt_that_it_ended test_the_past_goes_wherever_its_job_goes
    """,
    "test_promote": """
        test_what_is_due_is_promoted_and_what_is_not_waits test_everything_about_a_job_survives_the_promotion
        test_two_promoters_do_not_wait_for_each_other
    """,
    "test_rescue": """
        test_attempts_of_a_dead_instance_come_back_unspent test_a_beating_instance_keeps_its_attempts
        test_what_an_attempt_noted_survives_its_worker test_a_late_completion_of_a_rescued_attempt_is_stale
        test_rescues_are_bounded_and_the_last_is_a_visible_failure test_two_rescuers_take_each_attempt_once
        test_a_deadline_counts_the_attempt_and_backs_off test_a_deadline_of_the_last_attempt_exhausts_the_job
        test_an_end_that_waits_for_a_rescue_is_stale
    """,
    "test_unique_claims": """
        test_a_rescued_job_whose_key_is_taken_ends_as_a_duplicate_and_stops_nobody
        test_a_job_over_its_deadline_whose_key_is_taken_ends_as_a_duplicate_and_stops_nobody
    """,
    "test_undecided_keys": "test_many_undecided_keys_cost_one_wait test_a_rescue_takes_everybody_back",
    "test_admin_jobs": """
        test_the_worker_of_a_cancelled_job_is_told_and_comes_too_late
        test_a_job_that_completes_while_it_is_cancelled_is_completed
        test_a_retry_forgets_rescues_and_keeps_errors
    """,
}
"""Tests by module. Not here: what is about rings, segments, hints and damaged bodies, which it does not have."""
FIXTURES = {"test_settle": "attempt", "test_unique_claims": "superseded"}


@pytest.fixture
def sort_of_plane() -> type[CanonicalPlane]:
    return TranslatedPlane


for module_name, tests in SAME.items():
    spec = importlib.util.spec_from_file_location(f"{module_name}_of_the_queue_plane", STORE / f"{module_name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for test in (*tests.split(), *FIXTURES.get(module_name, "").split()):
        assert test not in globals(), test
        globals()[test] = getattr(module, test)

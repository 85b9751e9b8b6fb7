"""Who needs what: one row per object, in the letters of Postgres' own access lists.

r SELECT, a INSERT, w UPDATE, d DELETE, D TRUNCATE, U USAGE, X EXECUTE; and l, which is a letter of ours: lock the row,
which takes the right to update a column, here one that can have only one value. Functions run with the rights of their
caller, so a role needs whatever the functions that it calls need; a test follows those calls and names what is missing.
"""

from __future__ import annotations

import attrs

ROLES = ("producer", "worker", "maintenance", "callbacks", "reader", "admin")
"""In the order of the columns below."""

# producer worker maintenance callbacks reader admin
_TABLES = """
awa.batch_operations          -   -    rw   -    r  arwd
awa.cron_schedules            -   -    arwd -    r  rwd
awa.descriptors               -   arwd arwd -    r  r
awa.follow_up_failures        -   ar   ar   -    r  rd
awa.follow_up_specs           -   arw  arw  r    r  rd
awa.instances                 -   arw  arwd r    r  r
awa.job_unique_claims         ar  ard  ard  ard  r  ard
awa.jobs                      -   -    r    -    r  r
awa.jobs_hot                  a   arwd arwd arwd r  arwd
awa.kind_stats                -   -    arwd -    r  r
awa.leadership                -   r    arw  -    r  rw
awa.outbox_kinds              -   ar   ar   -    r  rd
awa.queue_stats               -   -    arwd -    r  r
awa.queues                    r   r    r    r    r  arwd
awa.rescue_outbox             -   rwd  arwd -    r  rd
awa.scheduled_jobs            a   arwd arwd a    r  arwd
awa.schema_migrations         r   r    r    r    r  r
awa.sleepers                  r   arw  arw  r    r  r
awa.storage_transition_state  rl  rl   rl   rl   r  rl
awa_queue.bodies              a   arwd arwd arwd r  arwd
awa_queue.bodies_*            -   -    rdD  -    -  -
awa_queue.callbacks           -   arwd arwd rwd  r  rd
awa_queue.deferred_jobs       a   a    arwd a    r  arwd
awa_queue.dlq_entries         -   a    arwd a    r  arwd
awa_queue.done                -   ar   r    ar   r  r
awa_queue.done_*              -   -    rdD  -    -  -
awa_queue.emptied_slots       -   -    ard  -    r  r
awa_queue.leases              -   arwd arwd rwd  r  rwd
awa_queue.leases_*            -   -    rdD  -    -  -
awa_queue.parked_ready        -   rwd  arwd -    r  rwd
awa_queue.ready               a   arwd arwd a    r  arwd
awa_queue.ready_*             -   -    rdD  -    -  -
awa_queue.ring_turns          r   r    ard  r    r  r
awa_queue.terminal            -   arwd arwd ar   r  arwd
"""
_SEQUENCES = """
awa.job_id_seq           U  U  U  U  r  rU
awa.leadership_term_seq  -  -  U  -  r  r
"""
_ROUTINES = {
    "admin": """
        awa.cancel_job awa.cron_trigger awa.insert_job_compat awa.lowest_job awa.retry_job
        awa_queue.cancel_waiting awa_queue.discard awa_queue.move_failed awa_queue.retry_each
        awa_queue.retry_ended awa_queue.with_cancel""",
    "callbacks": """
        awa.complete_external awa.complete_together awa.fail_external awa.heartbeat_callback awa.open_callback
        awa.resume_external awa.retry_external awa.unless_followed awa_queue.complete_parked
        awa_queue.complete_together awa_queue.lock_callback awa_queue.open_callback awa_queue.resolved
        awa_queue.take_callback awa_queue.unless_followed""",
    "maintenance": """
        awa.batch_step awa.bury_instances awa.change_waiting awa.cron_declare awa.cron_fire
        awa.end_stuck_sessions awa.forget_canonical awa.is_alive awa.is_finalized awa.lease_parked
        awa.make_all_ready awa.move_canonical awa.move_these awa.pick_canonical awa.promote_canonical
        awa.promote_canonical_one awa.refresh_kind_stats awa.refresh_queue_stats
        awa.rescue_canonical_deadlines awa.rescue_canonical_stale awa.rescue_innocent awa.sample_share
        awa.try_refresh awa.write_outbox awa_queue.backoff awa_queue.carry_bodies awa_queue.carry_leases
        awa_queue.change_each awa_queue.change_in_place awa_queue.forget awa_queue.originally awa_queue.park_ready
        awa_queue.promote awa_queue.promote_carefully awa_queue.promote_one awa_queue.promote_traced
        awa_queue.release_history_claims awa_queue.rescue_callbacks awa_queue.rescue_deadlines
        awa_queue.rescue_one awa_queue.rescue_stale awa_queue.rescued awa_queue.slot_content
        awa_queue.truncate_names awa_queue.truncate_slot awa_queue.turn""",
    "worker": """
        awa.attempt_state awa.claim_planes awa.complete_attempt awa.is_canonical awa.lease_hot
        awa.lease_hot_carefully awa.take_canonical awa_queue.await_callback awa_queue.cancel_callback
        awa_queue.claim awa_queue.extras awa_queue.fail_unclaimable awa_queue.joined awa_queue.leave_callback
        awa_queue.lost awa_queue.note awa_queue.note_body awa_queue.park awa_queue.park_one
        awa_queue.register_callback awa_queue.release_instance awa_queue.settle awa_queue.settle_badly
        awa_queue.shift_claims awa_queue.take awa_queue.take_carefully awa_queue.take_lane
        awa_queue.take_one awa_queue.unpark""",
    "maintenance admin": """
        awa.cron_options awa.waiting_page awa_queue.pull""",
    "maintenance callbacks": """
        awa_queue.tell_waiter""",
    "producer admin": """
        awa.insert_job awa_queue.options_fault awa_queue.read_instant""",
    "reader admin": """
        awa.list_jobs awa.mover_settings""",
    "worker callbacks": """
        awa.complete_canonical awa_queue.complete awa_queue.restate_claim awa_queue.shift_completed
        awa_queue.write_lease""",
    "worker maintenance": """
        awa.write_off_canonical awa_queue.abandon awa_queue.is_row_fault awa_queue.whatever_is_known
        awa_queue.write_off""",
    "maintenance reader admin": """
        awa.canonical_backlog_by_state awa.canonical_live_backlog
        awa.find_job awa.queue_plane_rows awa.storage_blockers awa.storage_runtimes awa.storage_status""",
    "worker maintenance callbacks": """
        awa.lease_of awa_queue.drop_lease awa_queue.give_back awa_queue.landed awa_queue.lock_lease
        awa_queue.postpone awa_queue.settle_one""",
    "worker maintenance callbacks admin": """
        awa.make_hot awa_queue.defer awa_queue.end_as_duplicate awa_queue.error_entry
        awa_queue.go_without awa_queue.land awa_queue.make_ready awa_queue.try_claim awa_queue.whole
        awa_queue.with_error awa_queue.with_past""",
    "producer worker maintenance callbacks admin": """
        awa.held_state awa.insert_canonical awa.insert_jobs awa.insert_jobs_or_conflict awa.insert_one awa.queue_channel
        awa.shard_of awa.wake awa.writes_canonical awa_queue.check_limits awa_queue.choose_shard awa_queue.current_slot
        awa_queue.due_at awa_queue.insert_with_options awa_queue.take_claim""",
    "worker maintenance callbacks reader admin": """
        awa.job_of awa.state_bit awa_queue.as_row""",
    "producer worker maintenance callbacks reader admin": """
        awa.storage_schema""",
    # Triggers run without being granted; migrations and the move between planes are the owner's.
    "": """
        awa.admit_granted_roles awa.keep_lanes awa.keep_storage awa.lock_storage awa.open_storage_gate
        awa.start_canonical awa.storage_abort awa.storage_enter_mixed_transition awa.storage_finalize
        awa.storage_pause_mover awa.storage_prepare awa.storage_prepare_schema awa.storage_throttle_mover
        awa.tell_storage""",
}
_SLOTS = {"awa_queue.bodies_*": 8, "awa_queue.done_*": 8, "awa_queue.ready_*": 8, "awa_queue.leases_*": 4}
PRIVILEGES = {
    "r": "SELECT",
    "a": "INSERT",
    "w": "UPDATE",
    "l": "UPDATE (singleton)",
    "d": "DELETE",
    "D": "TRUNCATE",
    "U": "USAGE",
    "X": "EXECUTE",
}


@attrs.frozen
class Decision:
    """What is decided about one object; `acl` has the letters of each role that gets any."""

    kind: str
    name: str
    acl: dict[str, str]


def decisions() -> list[Decision]:
    """Every decision, partitions one by one: tables (and views), sequences, routines."""
    found: list[Decision] = []
    for kind, lines in (("table", _TABLES), ("sequence", _SEQUENCES)):
        for name, *cells in (line.split() for line in lines.strip().splitlines()):
            acl = {role: letters for role, letters in zip(ROLES, cells, strict=True) if letters != "-"}
            slots = _SLOTS.get(name)
            names = [name] if slots is None else [name.replace("*", str(slot)) for slot in range(slots)]
            found.extend(Decision(kind, each, acl) for each in names)
    for roles, routines in _ROUTINES.items():
        found.extend(Decision("routine", name, dict.fromkeys(roles.split(), "X")) for name in routines.split())
    return found


def only_for(role: str) -> list[str]:
    """The routines that no other role gets: whoever may call one of them was meant to have this role."""
    return _ROUTINES.get(role, "").split()

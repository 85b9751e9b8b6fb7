-- Every other end of an attempt, and every other way into a state. A job enters a state in one place only: land().

-- The whole job of a live attempt. To be called in a statement AFTER the one that locked the lease: what a concurrent carry
-- re-addressed is visible only to a new snapshot. A body that is not there raises; it is never an inner join.
CREATE FUNCTION awa_queue.whole(l awa_queue.leases) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE b awa_queue.bodies; h awa.jobs_hot;
BEGIN
    IF l.lslot < 0 THEN
        SELECT x.* INTO h FROM awa.jobs_hot x WHERE x.job_id = l.job_id AND x.run_lease = l.run_lease;
        RETURN awa.job_of(h);
    END IF;
    SELECT x.* INTO b FROM awa_queue.bodies x WHERE x.slot = l.slot AND x.job_id = l.job_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the body of job % is not in segment %', l.job_id, l.slot USING ERRCODE = 'AWA01';
    END IF;
    RETURN awa_queue.as_row(b, l.state, l.attempt, l.run_lease, l.claimed_at, l.progress, l.metadata, l.instance);
END $$;

CREATE FUNCTION awa_queue.as_row(
    b awa_queue.bodies, p_state awa.job_state, p_attempt smallint, p_run_lease bigint, p_claimed_at timestamptz,
    p_progress jsonb, p_metadata jsonb, p_instance uuid
) RETURNS awa_queue.deferred_jobs LANGUAGE sql IMMUTABLE AS $$
    -- No SET clause: it must be inlined, so that a query for one id on top of awa.jobs finds the index.
    SELECT ROW(b.job_id, b.kind, b.queue, p_state, b.args, b.priority, p_attempt, p_run_lease, b.max_attempts, b.shard,
               coalesce(b.run_at, b.created_at), b.created_at, p_claimed_at, NULL, b.deadline_ms,
               CASE WHEN p_metadata IS NULL THEN b.metadata ELSE coalesce(b.metadata, '{}') || p_metadata END, b.tags, b.errors,
               coalesce(p_progress, b.progress), NULL, b.unique_key, b.unique_states, b.snoozes, b.rescues, b.interrupted,
               p_instance, b.past)::awa_queue.deferred_jobs
$$;

-- Write a job into the place of its state (j.state), with its unique key as the mask says. p_from is the state it comes from.
-- If a newer job holds a key it would need, it ends as cancelled with that reason: a job never stays where it was because
-- recording its move failed. If an open transaction has yet to decide who holds it, nobody waits: the job goes on without the
-- key (see go_without). In which plane it waits on is a matter of where the installation stands, not of where it comes from.
-- p_pos and p_since: the place and age that a job keeps which becomes available again. Returns the row as written.
CREATE FUNCTION awa_queue.land(
    j awa_queue.deferred_jobs, p_from awa.job_state, p_reason text DEFAULT NULL, p_pos bigint DEFAULT NULL,
    p_since timestamptz DEFAULT NULL
) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    v_had    boolean;
    v_wants  boolean;
    v_dlq    boolean;
    v_holder bigint;
BEGIN
    IF j.unique_key IS NOT NULL THEN
        v_had := get_bit(j.unique_states, awa.state_bit(p_from)) = 1;
        v_wants := get_bit(j.unique_states, awa.state_bit(j.state)) = 1;
        IF v_wants AND NOT v_had THEN
            v_holder := awa_queue.try_claim(j.unique_key, j.job_id);
            IF v_holder > 0 THEN
                RETURN awa_queue.end_as_duplicate(j);
            ELSIF v_holder = 0 THEN
                j := awa_queue.go_without(j, p_from);
            END IF;
        ELSIF v_had AND NOT v_wants THEN
            DELETE FROM awa.job_unique_claims c WHERE c.unique_key = j.unique_key AND c.job_id = j.job_id;
        END IF;
    END IF;
    CASE
        WHEN j.state IN ('scheduled', 'retryable') AND EXISTS (SELECT FROM awa.storage_transition_state s WHERE s.state = 'active') THEN
            INSERT INTO awa_queue.deferred_jobs SELECT j.*;
            PERFORM awa_queue.due_at(j.run_at);
        WHEN j.state IN ('scheduled', 'retryable') THEN
            PERFORM awa_queue.defer(j);
        WHEN j.state = 'available' THEN
            PERFORM awa_queue.make_ready(j, p_pos, p_since);
        WHEN j.state = 'failed' THEN
            j.finalized_at := coalesce(j.finalized_at, clock_timestamp());
            SELECT q.dlq_enabled INTO v_dlq FROM awa.queues q WHERE q.queue = j.queue;
            IF v_dlq AND p_reason IS NOT NULL THEN
                INSERT INTO awa_queue.dlq_entries SELECT j.*, p_reason;
                PERFORM set_config('awa.buried', j.job_id || ' ' || p_reason, true);
            ELSE
                INSERT INTO awa_queue.terminal SELECT j.*;
            END IF;
        WHEN j.state = 'cancelled' THEN
            j.finalized_at := coalesce(j.finalized_at, clock_timestamp());
            INSERT INTO awa_queue.terminal SELECT j.*;
        ELSE
            RAISE EXCEPTION 'a job does not land in state %', j.state;
    END CASE;
    RETURN j;
END $$;

-- A job whose key is undecided: where it waits or ends it does so without the key, and its mask says so. It is not made available;
-- it is due again in a second, and the promotion asks again.
CREATE FUNCTION awa_queue.go_without(j awa_queue.deferred_jobs, p_from awa.job_state) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF j.state IN ('available', 'running') THEN
        j.state := CASE WHEN p_from = 'retryable' THEN p_from ELSE 'scheduled' END;
        j.run_at := clock_timestamp() + interval '1 second';
    END IF;
    j.unique_states := set_bit(j.unique_states, awa.state_bit(j.state), 0);
    RETURN j;
END $$;

CREATE FUNCTION awa_queue.postpone(j awa_queue.deferred_jobs, p_from awa.job_state) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    j := awa_queue.go_without(j, p_from);
    j.attempted_at := NULL;
    j.instance := NULL;
    PERFORM awa_queue.defer(j);
    RETURN j;
END $$;

CREATE FUNCTION awa_queue.defer(j awa_queue.deferred_jobs) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF awa.writes_canonical() THEN
        INSERT INTO awa.scheduled_jobs SELECT j.*;
    ELSE
        INSERT INTO awa_queue.deferred_jobs SELECT j.*;
    END IF;
    PERFORM awa_queue.due_at(j.run_at);
END $$;

CREATE FUNCTION awa_queue.make_ready(j awa_queue.deferred_jobs, p_pos bigint DEFAULT NULL, p_since timestamptz DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    v_slot smallint := awa_queue.current_slot('segments');
    v_pos  bigint := coalesce(p_pos, nextval('awa.job_id_seq'));
BEGIN
    IF NOT EXISTS (SELECT FROM awa.storage_transition_state s WHERE s.state = 'active') AND awa.writes_canonical() THEN
        PERFORM awa.make_hot(ARRAY[j], ARRAY[v_pos], ARRAY[p_since]);
        RETURN;
    END IF;
    -- A body of an earlier availability may still be in this segment.
    DELETE FROM awa_queue.bodies b WHERE b.slot = v_slot AND b.job_id = j.job_id;
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, pos, run_at, deadline_ms,
        metadata, tags, errors, progress, unique_key, unique_states, snoozes, rescues, interrupted, past)
    VALUES (v_slot, j.priority, j.max_attempts, j.shard, j.job_id, j.created_at, j.kind, j.queue, j.args, v_pos, j.run_at, j.deadline_ms,
        j.metadata, j.tags, j.errors, j.progress, j.unique_key, j.unique_states, j.snoozes, j.rescues, j.interrupted, j.past);
    INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
    VALUES (awa_queue.current_slot('ready'), j.priority, j.shard, v_slot, j.attempt, v_pos, j.job_id, j.run_lease,
            coalesce(p_since, clock_timestamp()), j.queue);
    PERFORM awa.wake(j.queue, awa.queue_channel(j.queue));
END $$;

-- History is bounded: the first ten entries and the last ninety say what happened.
CREATE FUNCTION awa_queue.with_error(p_errors jsonb, p_entry jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog AS $$
    SELECT CASE WHEN jsonb_array_length(coalesce(p_errors, '[]')) < 100 THEN coalesce(p_errors, '[]') ELSE p_errors - 10 END || p_entry
$$;

CREATE FUNCTION awa_queue.error_entry(p_error text, p_attempt integer) RETURNS jsonb LANGUAGE sql VOLATILE SET search_path = pg_catalog AS $$
    SELECT jsonb_build_object('error', p_error, 'attempt', p_attempt, 'at', to_jsonb(clock_timestamp()))
$$;

-- A cancellation, with the attempt that it ended, if any.
CREATE FUNCTION awa_queue.with_cancel(j awa_queue.deferred_jobs, p_from awa.job_state, p_reason text) RETURNS jsonb LANGUAGE sql VOLATILE
SET search_path = pg_catalog AS $$
    SELECT coalesce(j.errors, '[]') || (awa_queue.error_entry('cancelled: ' || p_reason, j.attempt) || '{"terminal": true}'
        || CASE WHEN p_from IN ('running', 'waiting_external')
                THEN jsonb_build_object('started_at', to_jsonb(j.attempted_at), 'instance', j.instance) ELSE '{}' END)
$$;

-- The past of a job whose live attempt ends without an error: snoozed, interrupted, resumed … Bounded as errors are, and what went
-- the same way several times running (the lease tells) is one entry: a job that polls by snoozing has one, with a count, since when
-- (started_at, first_at) and until when. What retries and handlers go by is `errors`; this is for those who ask what happened.
CREATE FUNCTION awa_queue.with_past(j awa_queue.deferred_jobs, p_outcome text, p_reason text DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    v_last  jsonb := j.past -> -1;
    v_entry jsonb := jsonb_strip_nulls(jsonb_build_object('outcome', p_outcome, 'attempt', j.attempt, 'run_lease', j.run_lease,
        'started_at', to_jsonb(j.attempted_at), 'at', to_jsonb(clock_timestamp()), 'instance', j.instance, 'reason', p_reason));
BEGIN
    IF v_last @> jsonb_build_object('outcome', p_outcome, 'attempt', j.attempt, 'run_lease', j.run_lease - 1) THEN
        v_entry := v_entry || jsonb_build_object('started_at', v_last -> 'started_at', 'first_at', coalesce(v_last -> 'first_at', v_last -> 'at'),
            'count', coalesce((v_last ->> 'count')::bigint, 1) + 1);
        RETURN (j.past - (-1)) || v_entry;
    END IF;
    RETURN awa_queue.with_error(j.past, v_entry);
END $$;

-- The newer holder of the unique key wins; this job is kept as evidence. A mask that includes `cancelled` loses its key here.
CREATE FUNCTION awa_queue.end_as_duplicate(j awa_queue.deferred_jobs) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    j.state := 'cancelled';
    j.finalized_at := clock_timestamp();
    j.errors := awa_queue.with_error(j.errors, awa_queue.error_entry('cancelled as a duplicate: a newer job holds the unique key', j.attempt)
                || '{"terminal": true, "duplicate": true}');
    IF get_bit(j.unique_states, 6) = 1 THEN
        j.unique_key := NULL;
        j.unique_states := NULL;
    END IF;
    INSERT INTO awa_queue.terminal SELECT j.*;
    RETURN j;
END $$;

-- The last resort of every sweep: nothing about the job can be relied on, but it must leave where it was, visibly.
CREATE FUNCTION awa_queue.write_off(j awa_queue.deferred_jobs, p_error text) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE v_entry jsonb := awa_queue.error_entry(p_error, j.attempt) || '{"terminal": true}';
BEGIN
    j.state := 'failed';
    j.finalized_at := clock_timestamp();
    j.errors := CASE WHEN jsonb_typeof(j.errors) = 'array' THEN awa_queue.with_error(j.errors, v_entry) ELSE jsonb_build_array(v_entry) END;
    IF j.kind = 'unknown' THEN
        DELETE FROM awa.job_unique_claims c WHERE c.job_id = j.job_id;
    ELSIF get_bit(j.unique_states, 5) = 0 THEN
        DELETE FROM awa.job_unique_claims c WHERE c.unique_key = j.unique_key AND c.job_id = j.job_id;
    END IF;
    -- The id may already have ended once (that can be what is wrong with it): this record must not fail.
    DELETE FROM awa_queue.terminal t WHERE t.job_id = j.job_id;
    INSERT INTO awa_queue.terminal SELECT j.*;
    RETURN j;
END $$;

-- What is known of a job whose body is not where it should be.
CREATE FUNCTION awa_queue.whatever_is_known(p_job bigint, p_slot smallint, p_queue text, p_since timestamptz) RETURNS awa_queue.bodies
LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE b awa_queue.bodies;
BEGIN
    SELECT x.* INTO b FROM awa_queue.bodies x WHERE x.job_id = p_job ORDER BY x.slot = p_slot DESC LIMIT 1;
    IF NOT FOUND THEN
        b.job_id := p_job; b.kind := 'unknown'; b.queue := p_queue; b.args := 'null'; b.priority := 2; b.max_attempts := 1;
        b.shard := 0; b.created_at := p_since;
    END IF;
    RETURN b;
END $$;

-- A ready row that cannot be claimed would stop its queue for ever. It is recorded as failed, with whatever is known of it; if its
-- job has a live attempt the row was a ghost, and the history of that attempt says so.
CREATE FUNCTION awa_queue.fail_unclaimable(r awa_queue.ready, p_error text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    v_error text := 'could not be claimed: ' || p_error;
    l awa_queue.leases;
BEGIN
    DELETE FROM awa_queue.ready x WHERE x.rslot = r.rslot AND x.queue = r.queue AND x.priority = r.priority
        AND x.shard = r.shard AND x.pos = r.pos AND x.job_id = r.job_id;
    SELECT x.* INTO l FROM awa_queue.leases x WHERE x.job_id = r.job_id;
    IF FOUND THEN
        UPDATE awa_queue.bodies b SET errors = awa_queue.with_error(b.errors, awa_queue.error_entry(v_error, l.attempt))
        WHERE b.slot = l.slot AND b.job_id = l.job_id;
        RETURN;
    END IF;
    PERFORM awa_queue.write_off(awa_queue.as_row(awa_queue.whatever_is_known(r.job_id, r.slot, r.queue, r.ready_at), 'failed',
        r.attempt, r.run_lease, NULL, NULL, NULL, NULL), v_error);
END $$;

-- The last resort for a live attempt.
CREATE FUNCTION awa_queue.abandon(l awa_queue.leases, p_error text) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE h awa.jobs_hot;
BEGIN
    IF l.lslot < 0 THEN
        DELETE FROM awa.jobs_hot x WHERE x.job_id = l.job_id AND x.run_lease = l.run_lease AND x.instance = l.instance
            AND x.state <> 'completed' RETURNING x.* INTO h;
        RETURN CASE WHEN FOUND THEN awa_queue.write_off(awa.job_of(h), p_error) END;
    END IF;
    DELETE FROM awa_queue.leases x WHERE x.job_id = l.job_id AND x.run_lease = l.run_lease AND x.instance = l.instance;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN awa_queue.write_off(awa_queue.as_row(awa_queue.whatever_is_known(l.job_id, l.slot, 'unknown', l.claimed_at), 'failed',
        l.attempt, l.run_lease, l.claimed_at, NULL, NULL, l.instance), p_error);
END $$;

-- The lease of an attempt, locked, in whichever plane it is. A carry moves a lease by delete and insert, and a parked attempt moves
-- from the canonical plane to this one: a statement that waited for such a move can miss a lease that lives. Stale is what a look
-- in a new statement does not find.
CREATE FUNCTION awa_queue.lock_lease(p_job bigint, p_run_lease bigint, p_instance uuid) RETURNS awa_queue.leases LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases; h awa.jobs_hot;
BEGIN
    LOOP
        SELECT x.* INTO l FROM awa_queue.leases x
        WHERE x.job_id = p_job AND x.run_lease = p_run_lease AND x.instance = p_instance FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT x.* INTO h FROM awa.jobs_hot x WHERE x.job_id = p_job AND x.run_lease = p_run_lease AND x.instance = p_instance
            AND x.state IN ('running', 'waiting_external') FOR UPDATE;
        IF FOUND THEN
            RETURN awa.lease_of(h);
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM awa_queue.leases x
                              WHERE x.job_id = p_job AND x.run_lease = p_run_lease AND x.instance = p_instance);
    END LOOP;
    RETURN l;
END $$;

-- An attempt leaves where it was; the caller has locked it.
CREATE FUNCTION awa_queue.drop_lease(l awa_queue.leases) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    IF l.lslot < 0 THEN
        DELETE FROM awa.jobs_hot h WHERE h.job_id = l.job_id AND h.run_lease = l.run_lease;
    ELSE
        DELETE FROM awa_queue.leases x WHERE x.lslot = l.lslot AND x.job_id = l.job_id AND x.run_lease = l.run_lease;
    END IF;
END $$;

-- A live attempt changes where it stands: state, deadline, notes. What a canonical lease carries as notes is what is new of them.
CREATE FUNCTION awa_queue.write_lease(l awa_queue.leases) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    IF l.lslot < 0 THEN
        UPDATE awa.jobs_hot h SET state = l.state, deadline_at = l.deadline_at, progress = coalesce(l.progress, h.progress),
               metadata = CASE WHEN l.metadata IS NULL THEN h.metadata ELSE coalesce(h.metadata, '{}') || l.metadata END
        WHERE h.job_id = l.job_id AND h.run_lease = l.run_lease;
    ELSE
        UPDATE awa_queue.leases x SET state = l.state, deadline_at = l.deadline_at, progress = l.progress, metadata = l.metadata
        WHERE x.lslot = l.lslot AND x.job_id = l.job_id AND x.run_lease = l.run_lease;
    END IF;
END $$;

-- End one attempt. `o` says where it goes (the decision is the caller's): state, delay (s), error, terminal, uncount, snooze,
-- interrupted, pos-keeping give_back, progress, metadata, reason; ended_as and why, for the past of one without an error. Returns NULL
-- when the attempt is stale.
CREATE FUNCTION awa_queue.settle_one(p_instance uuid, o jsonb) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    l awa_queue.leases := awa_queue.lock_lease((o ->> 'job_id')::bigint, (o ->> 'run_lease')::bigint, p_instance);
    j awa_queue.deferred_jobs;
    v_from  awa.job_state;
    v_pos   bigint;
    v_since timestamptz;
BEGIN
    IF l.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    v_from := l.state;
    j := awa_queue.whole(l);
    IF l.lslot < 0 THEN
        DELETE FROM awa.jobs_hot h WHERE h.job_id = l.job_id AND h.run_lease = l.run_lease RETURNING h.pos, h.ready_at INTO v_pos, v_since;
    ELSE
        DELETE FROM awa_queue.leases x WHERE x.lslot = l.lslot AND x.job_id = l.job_id AND x.run_lease = l.run_lease;
    END IF;
    IF o ? 'progress' THEN j.progress := o -> 'progress'; END IF;
    IF o ? 'metadata' THEN j.metadata := coalesce(j.metadata, '{}') || (o -> 'metadata'); END IF;
    IF o ? 'give_back' THEN
        RETURN awa_queue.give_back(l, j, v_pos, v_since);
    END IF;
    j.state := (o ->> 'state')::awa.job_state;
    j.run_at := CASE WHEN o ? 'delay' THEN clock_timestamp() + make_interval(secs => (o ->> 'delay')::float8) ELSE j.run_at END;
    IF o ? 'error' THEN
        j.errors := awa_queue.with_error(j.errors, awa_queue.error_entry(o ->> 'error', j.attempt)
                    || jsonb_build_object('started_at', to_jsonb(l.claimed_at), 'instance', l.instance)
                    || CASE WHEN o ? 'terminal' THEN '{"terminal": true}'::jsonb ELSE '{}' END
                    || CASE WHEN o ? 'interrupted' THEN '{"outcome": "interrupted"}'::jsonb ELSE '{}' END);
    ELSIF o ? 'snooze' OR o ? 'interrupted' OR o ? 'ended_as' THEN
        j.past := awa_queue.with_past(j, coalesce(o ->> 'ended_as', CASE WHEN o ? 'snooze' THEN 'snoozed' ELSE 'interrupted' END), o ->> 'why');
    END IF;
    IF o ? 'uncount' THEN j.attempt := greatest(j.attempt - 1, 0); END IF;
    IF o ? 'snooze' THEN j.snoozes := least(coalesce(j.snoozes, 0)::bigint + 1, 2147483647)::integer; END IF;
    IF o ? 'interrupted' THEN j.interrupted := coalesce(j.interrupted, 0) + 1; END IF;
    IF o ? 'rescued' THEN j.rescues := coalesce(j.rescues, 0) + 1; END IF;
    RETURN awa_queue.land(j, v_from, o ->> 'reason');
END $$;

-- A claim that was never started goes back to its place and age, as if it had not been taken: only run_lease has grown.
CREATE FUNCTION awa_queue.give_back(l awa_queue.leases, j awa_queue.deferred_jobs, p_pos bigint, p_since timestamptz)
RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE v_holder bigint;
BEGIN
    j.state := 'available';
    j.attempt := greatest(j.attempt - 1, 0);
    j.attempted_at := NULL;
    j.instance := NULL;
    IF l.lslot < 0 THEN
        RETURN awa_queue.land(j, l.state, NULL, p_pos, p_since);
    END IF;
    IF j.unique_key IS NOT NULL AND get_bit(j.unique_states, 1) = 1 AND get_bit(j.unique_states, 2) = 0 THEN
        v_holder := awa_queue.try_claim(j.unique_key, j.job_id);
        IF v_holder > 0 THEN
            RETURN awa_queue.end_as_duplicate(j);
        ELSIF v_holder = 0 THEN
            RETURN awa_queue.postpone(j, l.state);
        END IF;
    ELSIF j.unique_key IS NOT NULL AND get_bit(j.unique_states, 1) = 0 THEN
        DELETE FROM awa.job_unique_claims c WHERE c.unique_key = j.unique_key AND c.job_id = j.job_id;
    END IF;
    -- What the attempt noted so far is a checkpoint for the next one.
    UPDATE awa_queue.bodies b SET progress = j.progress, metadata = j.metadata
    WHERE b.slot = l.slot AND b.job_id = l.job_id AND (b.progress, b.metadata) IS DISTINCT FROM (j.progress, j.metadata);
    INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
    SELECT awa_queue.current_slot('ready'), b.priority, b.shard, l.slot, j.attempt, coalesce(b.pos, b.job_id), b.job_id,
           l.run_lease, coalesce(b.run_at, b.created_at), b.queue
    FROM awa_queue.bodies b WHERE b.slot = l.slot AND b.job_id = l.job_id;
    PERFORM awa.wake(j.queue, awa.queue_channel(j.queue));
    RETURN j;
END $$;

-- A job as it landed, for whoever has just moved it: a dead letter with its reason. land() leaves that in the transaction: to look
-- takes the right to read dead letters, which those who make them need not have.
CREATE FUNCTION awa_queue.landed(j awa_queue.deferred_jobs) RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT to_jsonb(j) || CASE WHEN j.state = 'failed' AND split_part(current_setting('awa.buried', true), ' ', 1) = j.job_id::text
        THEN jsonb_build_object('dlq_reason', split_part(current_setting('awa.buried', true), ' ', 2)) ELSE '{}' END
$$;

-- End many attempts, each in its own subtransaction: one that cannot be recorded as asked is recorded as failed, with why, and if
-- not even that can be, it is written off. Returns one row per attempt that was this instance's; ids that are missing are stale.
CREATE FUNCTION awa_queue.settle(p_instance uuid, p_outcomes jsonb)
RETURNS TABLE (job_id bigint, run_lease bigint, job jsonb) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    o jsonb;
    j awa_queue.deferred_jobs;
    v_error text;
    v_state text;
BEGIN
    FOR o IN SELECT e FROM jsonb_array_elements(p_outcomes) e ORDER BY (e ->> 'job_id')::bigint LOOP
        BEGIN
            j := awa_queue.settle_one(p_instance, o);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
            IF NOT awa_queue.is_row_fault(v_state) THEN
                RAISE;
            END IF;
            j := awa_queue.settle_badly(p_instance, o, 'its end could not be recorded as asked: ' || v_error);
        END;
        IF j.job_id IS NOT NULL THEN
            job_id := j.job_id; run_lease := j.run_lease;
            job := CASE WHEN j.state = 'failed' THEN awa_queue.landed(j) ELSE to_jsonb(j) END;
            IF (o ->> 'lslot')::integer < 0 THEN
                job := job || jsonb_build_object('canonical', awa.is_canonical(j.job_id));
            END IF;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION awa_queue.settle_badly(p_instance uuid, o jsonb, p_error text) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_error text; v_state text;
BEGIN
    RETURN awa_queue.settle_one(p_instance, jsonb_build_object('job_id', o -> 'job_id', 'run_lease', o -> 'run_lease', 'state', 'failed',
        'terminal', true, 'reason', 'terminal_error', 'error', p_error));
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
    IF NOT awa_queue.is_row_fault(v_state) THEN
        RAISE;
    END IF;
    RETURN awa_queue.abandon(awa_queue.lock_lease((o ->> 'job_id')::bigint, (o ->> 'run_lease')::bigint, p_instance),
                             p_error || '; ' || v_error);
END $$;

-- Progress and metadata of a running attempt, guarded. Returns whether the attempt is still this instance's.
CREATE FUNCTION awa_queue.note(p_job bigint, p_run_lease bigint, p_instance uuid, p_progress jsonb, p_metadata jsonb)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    LOOP
        UPDATE awa_queue.leases l SET progress = coalesce(p_progress, l.progress),
               metadata = CASE WHEN p_metadata IS NULL THEN l.metadata ELSE coalesce(l.metadata, '{}') || p_metadata END
        WHERE l.job_id = p_job AND l.run_lease = p_run_lease AND l.instance = p_instance;
        IF FOUND THEN
            RETURN true;
        END IF;
        UPDATE awa.jobs_hot h SET progress = coalesce(p_progress, h.progress),
               metadata = CASE WHEN p_metadata IS NULL THEN h.metadata ELSE coalesce(h.metadata, '{}') || p_metadata END
        WHERE h.job_id = p_job AND h.run_lease = p_run_lease AND h.instance = p_instance AND h.state IN ('running', 'waiting_external');
        IF FOUND THEN
            RETURN true;
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM awa_queue.leases l
                              WHERE l.job_id = p_job AND l.run_lease = p_run_lease AND l.instance = p_instance);
    END LOOP;
    RETURN false;
END $$;

-- Which of these attempts are no longer this instance's: cancelled, rescued, or ended by somebody else.
CREATE FUNCTION awa_queue.lost(p_jobs bigint[], p_leases bigint[], p_instance uuid) RETURNS TABLE (job_id bigint, run_lease bigint, cancelled boolean)
LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_missing bigint[]; v_missing_leases bigint[];
BEGIN
    FOR i IN 1..2 LOOP
        SELECT array_agg(a.job_id), array_agg(a.run_lease) INTO v_missing, v_missing_leases
        FROM unnest(p_jobs, p_leases) AS a (job_id, run_lease)
        WHERE NOT EXISTS (SELECT FROM awa_queue.leases l
                          WHERE l.job_id = a.job_id AND l.run_lease = a.run_lease AND l.instance = p_instance OFFSET 0)
          AND NOT EXISTS (SELECT FROM awa.jobs_hot h WHERE h.job_id = a.job_id AND h.run_lease = a.run_lease
                          AND h.instance = p_instance AND h.state <> 'completed' OFFSET 0);
        p_jobs := v_missing; p_leases := v_missing_leases;
        EXIT WHEN v_missing IS NULL;
    END LOOP;
    RETURN QUERY SELECT a.job_id, a.run_lease, EXISTS (SELECT FROM awa_queue.terminal t WHERE t.job_id = a.job_id
                        AND t.run_lease = a.run_lease AND t.state = 'cancelled')
                 FROM unnest(v_missing, v_missing_leases) AS a (job_id, run_lease);
END $$;

-- Metadata of an attempt that is about to complete goes into the body, which then is the job's history.
CREATE FUNCTION awa_queue.note_body(p_job bigint, p_run_lease bigint, p_instance uuid, p_metadata jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases := awa_queue.lock_lease(p_job, p_run_lease, p_instance);
BEGIN
    IF l.lslot < 0 THEN
        UPDATE awa.jobs_hot h SET metadata = coalesce(h.metadata, '{}') || p_metadata WHERE h.job_id = l.job_id;
    ELSE
        UPDATE awa_queue.bodies b SET metadata = coalesce(b.metadata, '{}') || p_metadata WHERE b.slot = l.slot AND b.job_id = l.job_id;
    END IF;
END $$;

-- A stopping process gives back what it still holds: available again at once, the attempt not counted.
CREATE FUNCTION awa_queue.release_instance(p_instance uuid) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v_held jsonb; v_count integer;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('job_id', l.job_id, 'run_lease', l.run_lease, 'give_back', true)) INTO v_held
    FROM (SELECT x.job_id, x.run_lease FROM awa_queue.leases x WHERE x.instance = p_instance AND x.state = 'running'
          UNION ALL SELECT h.job_id, h.run_lease FROM awa.jobs_hot h WHERE h.instance = p_instance AND h.state = 'running') l;
    SELECT count(*) INTO v_count FROM awa_queue.settle(p_instance, coalesce(v_held, '[]'));
    RETURN v_count;
END $$;

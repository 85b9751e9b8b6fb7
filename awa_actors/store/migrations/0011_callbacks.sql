-- Waiting for the outside world. One row per registered callback, whose id is a generation of its own: a new registration of
-- the same job is a new row, and every generation is resolved at most once.
--
-- Lock order of every verb here: the lease first, then the callback row. The lease is what all ends of an attempt compete
-- for (handler, cancel, rescue, resolution); the row says whether this generation is still open. A row whose lease is gone
-- is dead: it resolves nothing, and goes with its timeout or with the job's next registration.
CREATE TABLE awa_queue.callbacks (
    callback_id   uuid PRIMARY KEY,
    job_id        bigint NOT NULL,
    run_lease     bigint NOT NULL,
    instance      uuid NOT NULL,
    timeout_at    timestamptz NOT NULL,
    inside        boolean NOT NULL DEFAULT false,   -- the handler itself waits, and holds its permit
    resumed       boolean NOT NULL DEFAULT false,   -- resolved; the handler has not taken the payload yet
    payload       jsonb,
    cel           jsonb,                            -- filter, on_complete, on_fail, transform
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX callbacks_job ON awa_queue.callbacks (job_id);
CREATE INDEX callbacks_timeout ON awa_queue.callbacks (timeout_at);
CREATE INDEX callbacks_inside ON awa_queue.callbacks (instance) WHERE inside;

-- Wake the handler that waits on a callback, wherever it runs. It also polls: nothing depends on this.
CREATE FUNCTION awa_queue.tell_waiter(p_callback uuid) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF coalesce(current_setting('awa.notify', true), '') <> 'off' THEN
        PERFORM pg_notify('awa:callback', p_callback::text);
    END IF;
END $$;

-- A unique key whose mask differs between running and waiting changes hands with the state. False: a newer job holds the key
-- this one would need, and it ended as a duplicate.
CREATE FUNCTION awa_queue.restate_claim(l awa_queue.leases, p_to awa.job_state) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE j awa_queue.deferred_jobs := awa_queue.whole(l); v_had boolean; v_wants boolean;
BEGIN
    IF j.unique_key IS NULL THEN
        RETURN true;
    END IF;
    v_had := get_bit(j.unique_states, awa.state_bit(l.state)) = 1;
    v_wants := get_bit(j.unique_states, awa.state_bit(p_to)) = 1;
    IF v_wants AND NOT v_had AND awa_queue.take_claim(j.unique_key, j.job_id) IS NOT NULL THEN
        PERFORM awa_queue.drop_lease(l);
        PERFORM awa_queue.end_as_duplicate(j);
        RETURN false;
    ELSIF v_had AND NOT v_wants THEN
        DELETE FROM awa.job_unique_claims c WHERE c.unique_key = j.unique_key AND c.job_id = j.job_id;
    END IF;
    RETURN true;
END $$;

-- Register a callback for a running attempt; an earlier registration of the job is void from here on. NULL: the attempt is
-- stale (or already waits). To be committed before anybody outside hears of the id.
CREATE FUNCTION awa_queue.register_callback(p_job bigint, p_run_lease bigint, p_instance uuid, p_seconds float8, p_cel jsonb)
RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases := awa_queue.lock_lease(p_job, p_run_lease, p_instance); v_id uuid := gen_random_uuid();
BEGIN
    IF l.job_id IS NULL OR l.state <> 'running' THEN
        RETURN NULL;
    END IF;
    DELETE FROM awa_queue.callbacks c WHERE c.job_id = p_job;
    INSERT INTO awa_queue.callbacks (callback_id, job_id, run_lease, instance, timeout_at, cel)
    VALUES (v_id, p_job, p_run_lease, p_instance, clock_timestamp() + make_interval(secs => p_seconds), p_cel);
    RETURN v_id;
END $$;

-- Take a registration back. False: there is none of this attempt under this id, or it was resolved.
CREATE FUNCTION awa_queue.cancel_callback(p_callback uuid, p_job bigint, p_run_lease bigint, p_instance uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases := awa_queue.lock_lease(p_job, p_run_lease, p_instance);
BEGIN
    IF l.job_id IS NULL OR l.state <> 'running' THEN
        RETURN false;
    END IF;
    DELETE FROM awa_queue.callbacks c
    WHERE c.callback_id = p_callback AND c.job_id = p_job AND c.run_lease = p_run_lease AND NOT c.resumed;
    RETURN FOUND;
END $$;

-- Park one attempt: its handler has returned, no worker is held, its instance no longer matters and its deadline is off.
-- Outcome: parked; resumed (the answer was already there: the job runs again with it); violation (nothing to wait for);
-- duplicate (its unique key went to a newer job); NULL when the attempt is stale: somebody else ended it.
CREATE FUNCTION awa_queue.park_one(p_instance uuid, o jsonb, OUT outcome text, OUT job awa_queue.deferred_jobs) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    l awa_queue.leases := awa_queue.lock_lease((o ->> 'job_id')::bigint, (o ->> 'run_lease')::bigint, p_instance);
    c awa_queue.callbacks;
BEGIN
    IF l.job_id IS NULL THEN
        RETURN;
    END IF;
    SELECT x.* INTO c FROM awa_queue.callbacks x
    WHERE x.job_id = l.job_id AND x.run_lease = l.run_lease AND x.callback_id::text = lower(o ->> 'callback_id') FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 'violation';
        job := awa_queue.settle_one(p_instance, jsonb_build_object('state', 'failed', 'terminal', true,
            'reason', 'wait_for_callback_contract_violation',
            'error', 'returned WaitForCallback without a registered callback: return the token of job.register_callback()')
            || (o - 'callback_id'));
    ELSIF c.resumed THEN
        outcome := 'resumed';
        DELETE FROM awa_queue.callbacks x WHERE x.callback_id = c.callback_id;
        job := awa_queue.settle_one(p_instance, '{"state": "available", "uncount": true, "ended_as": "resumed"}' || (o - 'callback_id'));
    ELSIF NOT awa_queue.restate_claim(l, 'waiting_external') THEN
        outcome := 'duplicate';
        DELETE FROM awa_queue.callbacks x WHERE x.callback_id = c.callback_id;
        SELECT t.* INTO job FROM awa_queue.terminal t WHERE t.job_id = l.job_id;
    ELSE
        outcome := 'parked';
        l.state := 'waiting_external';
        l.deadline_at := NULL;
        l.progress := coalesce(o -> 'progress', l.progress);
        IF o ? 'metadata' THEN l.metadata := coalesce(l.metadata, '{}') || (o -> 'metadata'); END IF;
        PERFORM awa_queue.write_lease(l);
        job := awa_queue.whole(l);
    END IF;
END $$;

-- Park many attempts, each in its own subtransaction: one that cannot be parked as asked is recorded as failed, with why.
CREATE FUNCTION awa_queue.park(p_instance uuid, p_entries jsonb) RETURNS TABLE (job_id bigint, run_lease bigint, outcome text, job jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE o jsonb; v record; v_error text;
BEGIN
    FOR o IN SELECT e FROM jsonb_array_elements(p_entries) e ORDER BY (e ->> 'job_id')::bigint LOOP
        BEGIN
            SELECT * INTO v FROM awa_queue.park_one(p_instance, o);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR invalid_parameter_value THEN
            GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT;
            SELECT 'violation' AS outcome, awa_queue.settle_one(p_instance, jsonb_build_object('job_id', o -> 'job_id',
                'run_lease', o -> 'run_lease', 'state', 'failed', 'terminal', true, 'reason', 'terminal_error',
                'error', 'could not wait for its callback: ' || v_error)) AS job INTO v;
        END;
        IF (v.job).job_id IS NOT NULL THEN
            job_id := (v.job).job_id; run_lease := (v.job).run_lease; outcome := v.outcome;
            job := awa_queue.landed(v.job) || CASE v.outcome WHEN 'parked' THEN jsonb_build_object('callback_id', o -> 'callback_id') ELSE '{}' END;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- A look by the handler that waits inside; the first one marks it as waiting. Status: waiting (until due_in seconds from
-- now), resumed (with the payload, also when asked again), expired (the callback is over, the attempt runs on), unknown (not
-- registered, replaced, taken back), stale (the attempt is no longer this instance's). p_remaining: seconds that are left of the
-- attempt's deadline, which stands still while it waits.
CREATE FUNCTION awa_queue.await_callback(
    p_callback uuid, p_job bigint, p_run_lease bigint, p_instance uuid, p_remaining float8,
    OUT status text, OUT payload text, OUT due_in float8
) LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases := awa_queue.lock_lease(p_job, p_run_lease, p_instance); c awa_queue.callbacks;
BEGIN
    IF l.job_id IS NULL THEN
        status := 'stale';
        RETURN;
    END IF;
    SELECT x.* INTO c FROM awa_queue.callbacks x
    WHERE x.callback_id = p_callback AND x.job_id = p_job AND x.run_lease = p_run_lease FOR UPDATE;
    IF NOT FOUND THEN
        status := 'unknown';
    ELSIF c.resumed OR c.timeout_at <= clock_timestamp() THEN
        status := CASE WHEN c.resumed THEN 'resumed' ELSE 'expired' END;
        payload := c.payload::text;
        -- The payload can be read again, should this answer get lost; the row goes with its lease.
        UPDATE awa_queue.callbacks x SET timeout_at = least(x.timeout_at, clock_timestamp()) WHERE x.callback_id = p_callback AND x.resumed;
        DELETE FROM awa_queue.callbacks x WHERE x.callback_id = p_callback AND NOT x.resumed;
        IF l.state <> 'running' AND NOT awa_queue.restate_claim(l, 'running') THEN
            status := 'stale';
            RETURN;
        END IF;
        l.state := 'running';
        l.deadline_at := clock_timestamp() + make_interval(secs => p_remaining);
        PERFORM awa_queue.write_lease(l);
    ELSE
        status := 'waiting';
        due_in := extract(epoch FROM c.timeout_at - clock_timestamp())::float8;
        IF NOT c.inside THEN
            IF NOT awa_queue.restate_claim(l, 'waiting_external') THEN
                status := 'stale';
                RETURN;
            END IF;
            UPDATE awa_queue.callbacks x SET inside = true WHERE x.callback_id = p_callback;
            l.state := 'waiting_external';
            l.deadline_at := NULL;
            PERFORM awa_queue.write_lease(l);
        END IF;
    END IF;
END $$;

-- Stop waiting inside without an answer: the handler's scope was cancelled or it gave up. The callback stays open.
CREATE FUNCTION awa_queue.leave_callback(p_callback uuid, p_job bigint, p_run_lease bigint, p_instance uuid, p_remaining float8)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases := awa_queue.lock_lease(p_job, p_run_lease, p_instance);
BEGIN
    UPDATE awa_queue.callbacks x SET inside = false WHERE l.job_id IS NOT NULL AND x.callback_id = p_callback AND x.inside;
    IF FOUND AND l.state = 'waiting_external' AND awa_queue.restate_claim(l, 'running') THEN
        l.state := 'running';
        l.deadline_at := clock_timestamp() + make_interval(secs => p_remaining);
        PERFORM awa_queue.write_lease(l);
    END IF;
END $$;

-- The lease and the row of an open callback, both locked, in that order. NULL: unknown, resolved, replaced, or its attempt ended.
CREATE FUNCTION awa_queue.lock_callback(p_callback uuid, OUT l awa_queue.leases, OUT c awa_queue.callbacks) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    SELECT x.* INTO c FROM awa_queue.callbacks x WHERE x.callback_id = p_callback;
    IF FOUND THEN
        l := awa_queue.lock_lease(c.job_id, c.run_lease, c.instance);
        -- A new statement: what another resolver did while we waited for the lease is visible only now.
        SELECT x.* INTO c FROM awa_queue.callbacks x WHERE l.job_id IS NOT NULL AND x.callback_id = p_callback AND NOT x.resumed FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        l := NULL;
        c := NULL;
    END IF;
END $$;

-- Resolve a callback for good: the row goes, its lease stays locked for whoever ends the attempt. NULL as in lock_callback.
CREATE FUNCTION awa_queue.take_callback(p_callback uuid) RETURNS awa_queue.leases LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE v record;
BEGIN
    SELECT * INTO v FROM awa_queue.lock_callback(p_callback);
    IF (v.l).job_id IS NOT NULL THEN
        DELETE FROM awa_queue.callbacks x WHERE x.callback_id = p_callback;
        IF (v.c).inside THEN
            PERFORM awa_queue.tell_waiter(p_callback);
        END IF;
    END IF;
    RETURN v.l;
END $$;

-- The answer of a resolution: the job as it landed, the state it came from, which follow-ups belong to that (or null), and those
-- of them that are declared in the database, so that whoever resolves can enqueue them in the same transaction.
CREATE FUNCTION awa_queue.resolved(j awa_queue.deferred_jobs, p_from awa.job_state, p_outcome text) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    RETURN awa_queue.landed(j) || jsonb_build_object('came_from', p_from, 'outcome', p_outcome, 'specs', (
        SELECT jsonb_agg(to_jsonb(s.*) ORDER BY s.application, s.name) FROM awa.follow_up_specs s
        WHERE s.kind = j.kind AND s.outcome = p_outcome));
END $$;

-- For a resolution that stands alone: refuse it, and so undo it, when there are follow-ups that only a transaction could enqueue.
-- p_followed: what the caller has closures for, as outcome:kind.
CREATE FUNCTION awa_queue.unless_followed(p_answer jsonb, p_followed text[]) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    IF p_answer -> 'specs' <> 'null' OR (p_answer ->> 'outcome') || ':' || (p_answer ->> 'kind') = ANY (p_followed) THEN
        RAISE EXCEPTION 'follow-ups belong to this resolution' USING ERRCODE = 'AWA07';
    END IF;
    RETURN p_answer;
END $$;

-- What follows is for every language. All of them return the job as JSON, or NULL when there is no open callback of this id
-- (unknown, already resolved, replaced, or its attempt has ended): the caller's transaction goes on, and nothing was changed.
-- Several in one transaction: in ascending order of job id, or two such transactions may deadlock.

-- The job completes with the payload as its result, whether it is parked or its handler still runs.
CREATE FUNCTION awa.complete_external(p_callback uuid, p_payload jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE l awa_queue.leases := awa_queue.take_callback(p_callback); j awa_queue.deferred_jobs;
BEGIN
    IF l.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    j := awa_queue.whole(l);
    -- The body is the history of a completed job.
    IF l.metadata IS NOT NULL THEN
        UPDATE awa_queue.bodies b SET metadata = j.metadata WHERE b.slot = l.slot AND b.job_id = l.job_id;
    END IF;
    SELECT c.at INTO j.finalized_at
    FROM awa_queue.complete(ARRAY[l.job_id], ARRAY[l.run_lease], ARRAY[l.lslot], l.instance, ARRAY[p_payload::text]) c;
    IF j.unique_key IS NOT NULL AND get_bit(j.unique_states, awa.state_bit(l.state)) = 0 AND get_bit(j.unique_states, 3) = 1 THEN
        -- Its work is done: it completes with or without its key.
        PERFORM awa_queue.take_claim(j.unique_key, j.job_id);
    END IF;
    j.state := 'completed';
    j.result := p_payload;
    RETURN awa_queue.resolved(j, l.state, 'completed');
END $$;

-- The job fails for good: the outside world has decided. On a queue that keeps dead letters it becomes one.
CREATE FUNCTION awa.fail_external(p_callback uuid, p_error text DEFAULT 'failed by callback') RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE l awa_queue.leases := awa_queue.take_callback(p_callback); j awa_queue.deferred_jobs;
BEGIN
    IF l.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    j := awa_queue.settle_one(l.instance, jsonb_build_object('job_id', l.job_id, 'run_lease', l.run_lease, 'state', 'failed',
        'terminal', true, 'reason', 'external_fail', 'error', coalesce(p_error, 'failed by callback')));
    RETURN awa_queue.resolved(j, l.state, CASE j.state WHEN 'failed' THEN 'exhausted' END);
END $$;

-- The waiting job is run again from the start, attempt 0. A handler that still runs cannot be started anew: try again later.
CREATE FUNCTION awa.retry_external(p_callback uuid) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE v record; j awa_queue.deferred_jobs; v_attempt smallint;
BEGIN
    SELECT * INTO v FROM awa_queue.lock_callback(p_callback);
    IF (v.l).job_id IS NULL THEN
        RETURN NULL;
    ELSIF (v.l).state <> 'waiting_external' THEN
        RAISE EXCEPTION 'job % still runs and does not wait for its callback yet', (v.l).job_id USING ERRCODE = 'object_in_use';
    END IF;
    PERFORM awa_queue.take_callback(p_callback);
    j := awa_queue.whole(v.l);
    PERFORM awa_queue.drop_lease(v.l);
    v_attempt := j.attempt;
    j.past := awa_queue.with_past(j, 'retried', 'by its callback');
    j.state := 'available';
    j.attempt := 0;
    j.rescues := NULL;
    j.run_at := clock_timestamp();
    j := awa_queue.land(j, (v.l).state);
    RETURN awa_queue.resolved(j, (v.l).state, CASE j.state WHEN 'available' THEN 'retried' END)
        || jsonb_build_object('attempt_before', v_attempt);
END $$;

-- The job goes on with the payload: a handler that waits inside (or has yet to) gets it; a parked job runs again, the attempt not
-- counted. Both find it as "awa:callback_result" in the metadata, which also survives a worker that dies before it could read.
CREATE FUNCTION awa.resume_external(p_callback uuid, p_payload jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    v      record;
    l      awa_queue.leases;
    j      awa_queue.deferred_jobs;
    v_note jsonb := jsonb_build_object('awa:callback_result', coalesce(p_payload, 'null'));
BEGIN
    SELECT * INTO v FROM awa_queue.lock_callback(p_callback);
    l := v.l;
    IF l.job_id IS NULL THEN
        RETURN NULL;
    ELSIF l.state = 'waiting_external' AND NOT (v.c).inside THEN
        PERFORM awa_queue.take_callback(p_callback);
        j := awa_queue.settle_one(l.instance, jsonb_build_object('job_id', l.job_id, 'run_lease', l.run_lease, 'state', 'available',
            'uncount', true, 'ended_as', 'resumed', 'metadata', v_note));
    ELSIF l.state = 'waiting_external' AND NOT awa_queue.restate_claim(l, 'running') THEN
        PERFORM awa_queue.take_callback(p_callback);
        SELECT t.* INTO j FROM awa_queue.terminal t WHERE t.job_id = l.job_id;
    ELSE
        -- Kept until the handler takes it; a row that nobody takes goes with its lease and this new timeout.
        UPDATE awa_queue.callbacks x SET resumed = true, inside = false, payload = coalesce(p_payload, 'null'),
               timeout_at = clock_timestamp() + interval '1 day' WHERE x.callback_id = p_callback;
        l.state := 'running';
        l.metadata := coalesce(l.metadata, '{}') || v_note;
        PERFORM awa_queue.write_lease(l);
        j := awa_queue.whole(l);
        IF (v.c).inside THEN
            PERFORM awa_queue.tell_waiter(p_callback);
        END IF;
    END IF;
    RETURN awa_queue.resolved(j, (v.l).state, NULL);
END $$;

-- The callback expires p_seconds from now instead of when it would have.
CREATE FUNCTION awa.heartbeat_callback(p_callback uuid, p_seconds float8 DEFAULT 3600) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE v record; v_until timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
BEGIN
    SELECT * INTO v FROM awa_queue.lock_callback(p_callback);
    IF (v.l).job_id IS NULL THEN
        RETURN NULL;
    END IF;
    UPDATE awa_queue.callbacks x SET timeout_at = v_until WHERE x.callback_id = p_callback;
    RETURN awa_queue.resolved(awa_queue.whole(v.l), (v.l).state, NULL) || jsonb_build_object('callback_timeout_at', v_until);
END $$;

-- The job and its expressions, locked until the caller's transaction has decided what becomes of the callback.
CREATE FUNCTION awa_queue.open_callback(p_callback uuid) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v record;
BEGIN
    SELECT * INTO v FROM awa_queue.lock_callback(p_callback);
    IF (v.l).job_id IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN awa_queue.resolved(awa_queue.whole(v.l), (v.l).state, NULL) || jsonb_build_object('cel', (v.c).cel);
END $$;

-- Maintenance: waits that are over. Up to p_rows expired ones are retried with back-off (the attempt counts), or fail when that was
-- the last; attempts whose handler waited inside a process that died are taken back like any stale one; dead rows go.
-- An expired callback of a handler that runs and does not wait is left alone: it ends with its attempt, or when that parks.
CREATE FUNCTION awa_queue.rescue_callbacks(p_rows integer, p_bound integer) RETURNS SETOF jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now    timestamptz := clock_timestamp();
    v        record;
    l        awa_queue.leases;
    v_inside boolean;
BEGIN
    -- Dead rows: their attempt has ended.
    DELETE FROM awa_queue.callbacks c WHERE c.callback_id IN (
        SELECT d.callback_id FROM awa_queue.callbacks d
        WHERE d.timeout_at < v_now AND NOT EXISTS (SELECT FROM awa.jobs_hot h
              WHERE h.job_id = d.job_id AND h.run_lease = d.run_lease AND h.state IN ('running', 'waiting_external') OFFSET 0)
          AND NOT EXISTS (SELECT FROM awa_queue.leases x
              WHERE x.job_id = d.job_id AND x.run_lease = d.run_lease OFFSET 0)
        ORDER BY d.timeout_at LIMIT p_rows * 10 FOR UPDATE SKIP LOCKED);
    FOR v IN
        (SELECT c.*, 'expired_callback' AS why FROM awa_queue.callbacks c
         WHERE c.timeout_at < v_now AND NOT EXISTS (SELECT FROM awa_queue.leases x
               WHERE x.job_id = c.job_id AND x.run_lease = c.run_lease AND x.state = 'running' OFFSET 0)
           AND NOT EXISTS (SELECT FROM awa.jobs_hot h
               WHERE h.job_id = c.job_id AND h.run_lease = c.run_lease AND h.state = 'running' OFFSET 0)
         ORDER BY c.timeout_at LIMIT p_rows)
        UNION ALL
        (SELECT c.*, 'stale_instance' FROM awa_queue.callbacks c
         WHERE c.inside AND c.timeout_at >= v_now
           AND NOT EXISTS (SELECT FROM awa.instances i WHERE i.id = c.instance AND i.dead_at IS NULL OFFSET 0) LIMIT p_rows)
    LOOP
        SELECT x.* INTO l FROM awa_queue.leases x WHERE x.job_id = v.job_id AND x.run_lease = v.run_lease AND x.instance = v.instance
            AND x.state = 'waiting_external' FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            SELECT (awa.lease_of(h)).* INTO l FROM awa.jobs_hot h WHERE h.job_id = v.job_id AND h.run_lease = v.run_lease
                AND h.instance = v.instance AND h.state = 'waiting_external' FOR UPDATE SKIP LOCKED;
        END IF;
        -- Locked: somebody is at it.
        CONTINUE WHEN NOT FOUND;
        -- Again, now that the lease is ours: a heartbeat may have moved the timeout.
        DELETE FROM awa_queue.callbacks c WHERE c.callback_id = v.callback_id AND NOT c.resumed
            AND (c.timeout_at < v_now OR (v.why = 'stale_instance' AND c.inside)) RETURNING c.inside INTO v_inside;
        CONTINUE WHEN NOT FOUND;
        IF v_inside THEN
            PERFORM awa_queue.tell_waiter(v.callback_id);
        END IF;
        RETURN NEXT awa_queue.rescue_one(l, v.why, p_bound, CASE v.why WHEN 'expired_callback' THEN awa_queue.backoff(l.attempt) ELSE 0 END);
    END LOOP;
END $$;

-- What is usual among completions that arrived together, at once: parked attempts of this plane, without a unique key or notes, from
-- which nothing follows. Gives the ids of the jobs in the places of their callbacks; all else is untouched and has NULL there.
CREATE FUNCTION awa_queue.complete_parked(p_callbacks uuid[], p_payloads text[], p_followed text[]) RETURNS bigint[] LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_places bigint[];
    v_jobs   bigint[];
    v_leases bigint[];
    v_lslots smallint[];
    v_slots  smallint[];
    v_at     timestamptz := clock_timestamp();
    v_ended  bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_callbacks)]);
BEGIN
    -- Nobody is waited for, so the order of these locks is all one. A callback that is named twice is one.
    SELECT array_agg(t.place), array_agg(l.job_id), array_agg(l.run_lease), array_agg(l.lslot), array_agg(l.slot)
    INTO v_places, v_jobs, v_leases, v_lslots, v_slots
    FROM unnest(p_callbacks) WITH ORDINALITY AS t (id, place)
    CROSS JOIN LATERAL (SELECT x.* FROM awa_queue.callbacks x WHERE x.callback_id = t.id AND NOT x.inside AND NOT x.resumed OFFSET 0) c
    CROSS JOIN LATERAL (SELECT x.job_id, x.run_lease, x.lslot, x.slot FROM awa_queue.leases x
                        WHERE x.job_id = c.job_id AND x.run_lease = c.run_lease AND x.instance = c.instance
                          AND x.state = 'waiting_external' AND x.metadata IS NULL FOR UPDATE SKIP LOCKED) l
    WHERE array_position(p_callbacks, t.id) = t.place;
    -- A new statement: where a body is now, and whether the callback is still open, is certain only behind the lock.
    WITH plain AS MATERIALIZED (
        SELECT i.* FROM unnest(v_places, v_jobs, v_leases, v_lslots, v_slots) AS i (place, job_id, run_lease, lslot, slot)
        CROSS JOIN LATERAL (SELECT x.kind FROM awa_queue.bodies x
                            WHERE x.slot = i.slot AND x.job_id = i.job_id AND x.unique_key IS NULL OFFSET 0) b
        WHERE 'completed:' || b.kind <> ALL (p_followed)
          AND NOT EXISTS (SELECT FROM awa.follow_up_specs s WHERE s.kind = b.kind AND s.outcome = 'completed' OFFSET 0)
    ), resolved AS (
        DELETE FROM awa_queue.callbacks c USING plain i
        WHERE c.callback_id = p_callbacks[i.place] AND c.job_id = i.job_id AND c.run_lease = i.run_lease AND NOT c.inside AND NOT c.resumed
        RETURNING i.place, i.job_id, i.run_lease, i.lslot
    ), ended AS (
        DELETE FROM awa_queue.leases l USING resolved r
        WHERE l.lslot = r.lslot AND l.job_id = r.job_id AND l.run_lease = r.run_lease
        RETURNING r.place, l.slot, l.attempt, l.job_id, l.run_lease, l.claimed_at
    ), recorded AS (
        INSERT INTO awa_queue.done (slot, attempt, job_id, run_lease, claimed_at, finalized_at, result)
        SELECT e.slot, e.attempt, e.job_id, e.run_lease, e.claimed_at, v_at, p_payloads[e.place]::jsonb FROM ended e
    )
    SELECT array_agg(e.job_id ORDER BY t.place) INTO v_ended
    FROM generate_subscripts(p_callbacks, 1) AS t (place) LEFT JOIN ended e ON e.place = t.place;
    RETURN v_ended;
END $$;

-- Completions that arrived together, in one transaction and with one commit, each with its own answer. What one statement cannot
-- settle alone (follow-ups, a lock that a stranger holds, a failure) is undone and said to be left: its caller resolves it by
-- itself, as if it had come alone. Those of `completed` first, in one statement; the rest in the order of job ids, as every batch that
-- locks several jobs. Where all were of the first kind, `answers` and `is_left` are NULL.
CREATE FUNCTION awa_queue.complete_together(
    p_callbacks uuid[], p_payloads text[], p_followed text[], OUT completed bigint[], OUT answers text[], OUT is_left boolean[]
) LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET lock_timeout = '50ms' AS $$
DECLARE i integer;
BEGIN
    BEGIN
        completed := awa_queue.complete_parked(p_callbacks, p_payloads, p_followed);
    EXCEPTION WHEN OTHERS THEN
        completed := array_fill(NULL::bigint, ARRAY[cardinality(p_callbacks)]);
    END;
    IF array_position(completed, NULL) IS NULL THEN
        RETURN;
    END IF;
    answers := array_fill(NULL::text, ARRAY[cardinality(p_callbacks)]);
    is_left := array_fill(false, ARRAY[cardinality(p_callbacks)]);
    FOR i IN
        SELECT t.place FROM unnest(p_callbacks) WITH ORDINALITY AS t (id, place)
        LEFT JOIN LATERAL (SELECT c.job_id FROM awa_queue.callbacks c WHERE c.callback_id = t.id OFFSET 0) c ON true
        WHERE completed[t.place] IS NULL ORDER BY c.job_id, t.place
    LOOP
        BEGIN
            answers[i] := awa_queue.unless_followed(awa.complete_external(p_callbacks[i], p_payloads[i]::jsonb), p_followed)::text;
        EXCEPTION WHEN OTHERS THEN
            is_left[i] := true;
        END;
    END LOOP;
END $$;

-- The mover: while the transition is mixed, what waits in the canonical plane moves to the queue plane without being run, so that
-- the length of a drain is set by the longest running handler and not by the longest sleep. Same id, attempt, lease, unique key,
-- position and callback. It takes only rows that nobody has locked and never a running attempt; any number of movers may run.

-- Move up to p_rows jobs: ready ones, parked ones, deferred ones, due or not. Ready jobs go newest first: workers claim the canonical
-- plane first, so that the oldest run first wherever they are. `more`: there may be more to move now.
CREATE FUNCTION awa.move_canonical(p_rows integer, OUT moved integer, OUT failed integer, OUT more boolean) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE v_what text; v_ids bigint[]; v_id bigint; v_error text; v_state text;
BEGIN
    moved := 0;
    failed := 0;
    more := false;
    -- Locked until the end: an abort waits for us, and then sees what we moved.
    IF awa.held_state() <> 'mixed_transition' THEN
        RETURN;
    END IF;
    FOREACH v_what IN ARRAY ARRAY['ready', 'parked', 'deferred'] LOOP
        EXIT WHEN moved + failed >= p_rows;
        v_ids := awa.pick_canonical(v_what, p_rows - moved - failed);
        CONTINUE WHEN v_ids IS NULL;
        BEGIN
            moved := moved + awa.move_these(v_what, v_ids);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
            IF NOT awa_queue.is_row_fault(v_state) THEN
                RAISE;
            END IF;
            FOREACH v_id IN ARRAY v_ids LOOP
                BEGIN
                    moved := moved + awa.move_these(v_what, ARRAY[v_id]);
                EXCEPTION WHEN OTHERS THEN
                    GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
                    IF NOT awa_queue.is_row_fault(v_state) THEN
                        RAISE;
                    END IF;
                    PERFORM awa.write_off_canonical(v_id, 'could not be moved to the queue plane: ' || v_error);
                    failed := failed + 1;
                END;
            END LOOP;
        END;
    END LOOP;
    more := moved + failed >= p_rows;
END $$;

-- What may be moved, locked.
CREATE FUNCTION awa.pick_canonical(p_what text, p_rows integer) RETURNS bigint[] LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE v_ids bigint[];
BEGIN
    CASE p_what
        WHEN 'ready' THEN
            SELECT array_agg(p.job_id) INTO v_ids FROM (
                SELECT h.job_id FROM awa.jobs_hot h WHERE h.state = 'available' ORDER BY h.pos DESC LIMIT p_rows FOR UPDATE SKIP LOCKED) p;
        WHEN 'parked' THEN
            -- A handler that waits inside runs: its attempt stays.
            SELECT array_agg(p.job_id) INTO v_ids FROM (
                SELECT h.job_id FROM awa.jobs_hot h WHERE h.state = 'waiting_external' AND NOT EXISTS (
                    SELECT FROM awa_queue.callbacks c WHERE c.job_id = h.job_id AND c.run_lease = h.run_lease AND c.inside)
                ORDER BY h.job_id LIMIT p_rows FOR UPDATE OF h SKIP LOCKED) p;
        ELSE
            SELECT array_agg(p.job_id) INTO v_ids FROM (
                SELECT s.job_id FROM awa.scheduled_jobs s ORDER BY s.run_at, s.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED) p;
    END CASE;
    RETURN v_ids;
END $$;

-- Move rows that the caller has locked.
CREATE FUNCTION awa.move_these(p_what text, p_ids bigint[]) RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE v_hot awa.jobs_hot[]; v_jobs awa_queue.deferred_jobs[]; v_due timestamptz; v_count integer;
BEGIN
    IF p_what = 'deferred' THEN
        WITH taken AS (
            DELETE FROM awa.scheduled_jobs s USING unnest(p_ids) i (job_id) WHERE s.job_id = i.job_id RETURNING s.*
        ), put AS (
            INSERT INTO awa_queue.deferred_jobs SELECT t.* FROM taken t RETURNING run_at
        )
        SELECT min(p.run_at), count(*) INTO v_due, v_count FROM put p;
        PERFORM awa_queue.due_at(v_due);
        RETURN v_count;
    END IF;
    -- A new statement: a handler may have begun to wait inside before the row was locked.
    WITH taken AS (
        DELETE FROM awa.jobs_hot h USING unnest(p_ids) i (job_id)
        WHERE h.job_id = i.job_id AND NOT EXISTS (
            SELECT FROM awa_queue.callbacks c WHERE c.job_id = h.job_id AND c.run_lease = h.run_lease AND c.inside AND p_what = 'parked')
        RETURNING h AS hot
    )
    SELECT array_agg(t.hot), array_agg(awa.job_of(t.hot)) INTO v_hot, v_jobs FROM taken t;
    IF p_what = 'ready' THEN
        PERFORM awa.make_all_ready(v_jobs, ARRAY(SELECT h.pos FROM unnest(v_hot) h), ARRAY(SELECT h.ready_at FROM unnest(v_hot) h));
    ELSE
        PERFORM awa.lease_parked(v_jobs);
    END IF;
    RETURN coalesce(cardinality(v_hot), 0);
END $$;

-- Attempts that wait for a callback, as leases of the queue plane: whose they are and what wakes them stays as it was.
CREATE FUNCTION awa.lease_parked(p_jobs awa_queue.deferred_jobs[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_slot  smallint := awa_queue.current_slot('segments');
    v_lslot smallint := awa_queue.current_slot('leases');
BEGIN
    DELETE FROM awa_queue.bodies b USING unnest(p_jobs) j WHERE b.slot = v_slot AND b.job_id = j.job_id;
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, run_at, deadline_ms,
        metadata, tags, errors, progress, unique_key, unique_states, snoozes, rescues, interrupted, past)
    SELECT v_slot, j.priority, j.max_attempts, j.shard, j.job_id, j.created_at, j.kind, j.queue, j.args, j.run_at, j.deadline_ms,
           j.metadata, j.tags, j.errors, j.progress, j.unique_key, j.unique_states, j.snoozes, j.rescues, j.interrupted, j.past
    FROM unnest(p_jobs) j;
    INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at, state)
    SELECT v_lslot, v_slot, j.attempt,
           j.unique_key IS NOT NULL AND (get_bit(j.unique_states, 3) = 0 OR get_bit(j.unique_states, 2) = 0),
           j.job_id, j.run_lease, j.instance, j.attempted_at, 'waiting_external'
    FROM unnest(p_jobs) j;
END $$;

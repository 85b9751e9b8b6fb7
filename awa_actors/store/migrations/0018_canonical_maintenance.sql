-- Maintenance of the canonical plane, done by whoever leads and by ticks, until the transition is over. It acts on the tables in which
-- a row lives, never on a view, and lands where new jobs go at that moment. Every sweep is a batch; what a batch cannot move is moved,
-- or written off, row by row.

-- Make available what is due. In mixed_transition that is in the queue plane. Returns as awa_queue.promote does.
CREATE FUNCTION awa.promote_canonical(p_rows integer, OUT moved integer, OUT failed integer, OUT next_due timestamptz) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_ids  bigint[];
    v_jobs awa_queue.deferred_jobs[];
    v_state text;
BEGIN
    moved := 0;
    failed := 0;
    IF awa.is_finalized() THEN
        RETURN;
    END IF;
    SELECT array_agg(d.job_id ORDER BY d.run_at, d.priority, d.job_id) INTO v_ids FROM (
        SELECT s.job_id, s.run_at, s.priority FROM awa.scheduled_jobs s WHERE s.run_at <= clock_timestamp()
        ORDER BY s.run_at, s.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED) d;
    IF v_ids IS NOT NULL THEN
        BEGIN
            WITH due AS (
                DELETE FROM awa.scheduled_jobs s USING unnest(v_ids) WITH ORDINALITY AS i (job_id, ord)
                WHERE s.job_id = i.job_id AND (s.unique_key IS NULL
                      OR get_bit(s.unique_states, awa.state_bit(s.state)) = get_bit(s.unique_states, 1))
                RETURNING ROW(s.*)::awa_queue.deferred_jobs AS job, i.ord
            )
            SELECT array_agg(d.job ORDER BY d.ord) INTO v_jobs FROM due d;
            PERFORM awa.make_all_ready(v_jobs, '{}', '{}');
            moved := coalesce(cardinality(v_jobs), 0);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
            IF NOT awa_queue.is_row_fault(v_state) THEN
                RAISE;
            END IF;
        END;
        -- One by one: a unique key that changes hands with the state, or a batch that could not be written.
        SELECT promote_canonical.moved + count(*) FILTER (WHERE r.ok), count(*) FILTER (WHERE NOT r.ok) INTO moved, failed FROM (
            SELECT awa.promote_canonical_one(s.job_id) AS ok FROM awa.scheduled_jobs s WHERE s.job_id = ANY (v_ids) OFFSET 0) r;
    END IF;
    SELECT s.run_at INTO next_due FROM awa.scheduled_jobs s ORDER BY s.run_at LIMIT 1;
END $$;

CREATE FUNCTION awa.promote_canonical_one(p_job bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE j awa_queue.deferred_jobs; v_from awa.job_state; v_error text; v_state text;
BEGIN
    DELETE FROM awa.scheduled_jobs s WHERE s.job_id = p_job RETURNING s.* INTO j;
    v_from := j.state;
    j.state := 'available';
    PERFORM awa_queue.land(j, v_from);
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
    IF NOT awa_queue.is_row_fault(v_state) THEN
        RAISE;
    END IF;
    PERFORM awa.write_off_canonical(p_job, 'could not be promoted: ' || v_error);
    RETURN false;
END $$;

-- Many jobs become available, where new jobs go. Positions and ages are kept where they are given.
CREATE FUNCTION awa.make_all_ready(p_jobs awa_queue.deferred_jobs[], p_positions bigint[], p_since timestamptz[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_slot  smallint := awa_queue.current_slot('segments');
    v_rslot smallint := awa_queue.current_slot('ready');
    v_queue text;
BEGIN
    IF p_jobs IS NULL THEN
        RETURN;
    END IF;
    FOR i IN 1..cardinality(p_jobs) LOOP
        p_positions[i] := coalesce(p_positions[i], nextval('awa.job_id_seq'));
    END LOOP;
    IF awa.writes_canonical() THEN
        PERFORM awa.make_hot(p_jobs, p_positions, p_since);
        RETURN;
    END IF;
    DELETE FROM awa_queue.bodies b USING unnest(p_jobs) j WHERE b.slot = v_slot AND b.job_id = j.job_id;
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, pos, run_at, deadline_ms,
        metadata, tags, errors, progress, unique_key, unique_states, snoozes, rescues, interrupted, past)
    SELECT v_slot, j.priority, j.max_attempts, j.shard, j.job_id, j.created_at, j.kind, j.queue, j.args, p_positions[j.ord], j.run_at,
           j.deadline_ms, j.metadata, j.tags, j.errors, j.progress, j.unique_key, j.unique_states, j.snoozes, j.rescues, j.interrupted, j.past
    FROM (SELECT x.*, row_number() OVER () AS ord FROM unnest(p_jobs) x) j;
    INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
    SELECT v_rslot, j.priority, j.shard, v_slot, j.attempt, p_positions[j.ord], j.job_id, j.run_lease,
           coalesce(p_since[j.ord], clock_timestamp()), j.queue
    FROM (SELECT x.*, row_number() OVER () AS ord FROM unnest(p_jobs) x) j;
    FOR v_queue IN SELECT DISTINCT j.queue FROM unnest(p_jobs) j LOOP
        PERFORM awa.wake(v_queue, awa.queue_channel(v_queue));
    END LOOP;
END $$;

-- Take back canonical attempts of dead instances and of instances nobody knows, not spent and bounded, as awa_queue.rescue_stale does.
-- Expired callbacks of both planes are one sweep, awa_queue.rescue_callbacks.
CREATE FUNCTION awa.rescue_canonical_stale(p_rows integer, p_bound integer) RETURNS SETOF jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l       awa_queue.leases;
    v_lost  awa_queue.leases[];
    v_rows  jsonb[];
    v_row   jsonb;
    v_state text;
BEGIN
    IF awa.is_finalized() THEN
        RETURN;
    END IF;
    SELECT array_agg(s.lease) INTO v_lost FROM (
        SELECT awa.lease_of(h) AS lease FROM awa.jobs_hot h WHERE h.state = 'running'
        AND NOT EXISTS (SELECT FROM awa.instances i WHERE i.id = h.instance AND i.dead_at IS NULL)
        LIMIT p_rows FOR UPDATE OF h SKIP LOCKED) s;
    BEGIN
        v_rows := awa.rescue_innocent(v_lost, p_bound);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
        IF NOT awa_queue.is_row_fault(v_state) THEN
            RAISE;
        END IF;
    END;
    RETURN QUERY SELECT r FROM unnest(v_rows) r;
    -- The rest, one by one: beyond the bound, a unique key that changes hands, or a batch that could not be written.
    FOREACH l IN ARRAY coalesce(v_lost, '{}') LOOP
        IF EXISTS (SELECT FROM awa.jobs_hot h WHERE h.job_id = l.job_id AND h.run_lease = l.run_lease AND h.state = 'running') THEN
            v_row := awa_queue.rescue_one(l, 'stale_instance', p_bound, 0);
            IF v_row IS NOT NULL THEN RETURN NEXT v_row; END IF;
        END IF;
    END LOOP;
END $$;

-- Canonical attempts past their deadline by p_margin, as awa_queue.rescue_deadlines.
CREATE FUNCTION awa.rescue_canonical_deadlines(p_rows integer, p_margin float8, p_bound integer) RETURNS SETOF jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l     awa_queue.leases;
    v_row jsonb;
BEGIN
    IF awa.is_finalized() THEN
        RETURN;
    END IF;
    FOR l IN SELECT (awa.lease_of(h)).* FROM awa.jobs_hot h
             WHERE h.state = 'running' AND h.deadline_at < clock_timestamp() - make_interval(secs => p_margin)
             LIMIT p_rows FOR UPDATE SKIP LOCKED LOOP
        v_row := awa_queue.rescue_one(l, 'deadline_exceeded', p_bound, awa_queue.backoff(l.attempt));
        IF v_row IS NOT NULL THEN RETURN NEXT v_row; END IF;
    END LOOP;
END $$;

-- Those of these attempts about which nothing is special, in one batch.
CREATE FUNCTION awa.rescue_innocent(p_lost awa_queue.leases[], p_bound integer) RETURNS jsonb[] LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now  timestamptz := clock_timestamp();
    v_jobs awa_queue.deferred_jobs[];
    v_rows jsonb[];
BEGIN
    WITH taken AS (
        DELETE FROM awa.jobs_hot h USING unnest(p_lost) l
        WHERE h.job_id = l.job_id AND h.run_lease = l.run_lease AND coalesce(h.rescues, 0) < p_bound
          AND (h.unique_key IS NULL OR get_bit(h.unique_states, 2) = get_bit(h.unique_states, 4))
        RETURNING h AS hot
    )
    SELECT array_agg(awa_queue.rescued(awa.job_of(t.hot), v_now)) INTO v_jobs FROM taken t;
    IF v_jobs IS NULL THEN
        RETURN NULL;
    END IF;
    IF awa.writes_canonical() THEN
        INSERT INTO awa.scheduled_jobs SELECT * FROM unnest(v_jobs);
    ELSE
        INSERT INTO awa_queue.deferred_jobs SELECT * FROM unnest(v_jobs);
    END IF;
    SELECT array_agg(to_jsonb(j) || '{"rescue_reason": "stale_instance"}') INTO v_rows FROM unnest(v_jobs) j;
    PERFORM awa_queue.due_at(v_now);
    PERFORM awa.write_outbox(v_rows);
    RETURN v_rows;
END $$;

-- What maintenance does to jobs. Every write is its own guard: any number of processes doing it at once change nothing twice.

-- Move up to p_rows due jobs to where workers find them, and until the transition is over as many of the canonical plane (or
-- p_canonical). Returns how many moved, and when the next is due.
CREATE FUNCTION awa_queue.promote(p_rows integer, p_canonical integer DEFAULT NULL, OUT moved integer, OUT failed integer, OUT next_due timestamptz) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_slot  smallint := awa_queue.current_slot('segments');
    v_rslot smallint := awa_queue.current_slot('ready');
    v_ids   bigint[];
    v_queue text;
    v_queues text[];
    v_state text;
BEGIN
    failed := 0;
    BEGIN
        SELECT array_agg(d.job_id ORDER BY d.run_at, d.priority, d.job_id) INTO v_ids FROM (
            SELECT x.job_id, x.run_at, x.priority FROM awa_queue.deferred_jobs x WHERE x.run_at <= v_now
            ORDER BY x.run_at, x.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED) d;
        moved := coalesce(cardinality(v_ids), 0);
        IF moved > 0 THEN
            DELETE FROM awa_queue.bodies b USING unnest(v_ids) AS i (job_id) WHERE b.slot = v_slot AND b.job_id = i.job_id;
            WITH due AS MATERIALIZED (
                DELETE FROM awa_queue.deferred_jobs d USING unnest(v_ids) AS i (job_id)
                WHERE d.job_id = i.job_id AND (d.unique_key IS NULL
                      OR get_bit(d.unique_states, awa.state_bit(d.state)) = get_bit(d.unique_states, 1))
                RETURNING d.*
            ), placed AS MATERIALIZED (
                SELECT d.*, nextval('awa.job_id_seq') AS pos FROM due d
            ), bodied AS (
                INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, pos, run_at,
                    deadline_ms, metadata, tags, errors, progress, unique_key, unique_states, snoozes, rescues, interrupted, past)
                SELECT v_slot, p.priority, p.max_attempts, p.shard, p.job_id, p.created_at, p.kind, p.queue, p.args, p.pos, p.run_at,
                       p.deadline_ms, p.metadata, p.tags, p.errors, p.progress, p.unique_key, p.unique_states, p.snoozes, p.rescues, p.interrupted, p.past
                FROM placed p
            ), readied AS (
                INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
                SELECT v_rslot, p.priority, p.shard, v_slot, p.attempt, p.pos, p.job_id, p.run_lease, v_now, p.queue FROM placed p
            )
            SELECT array_agg(DISTINCT p.queue) INTO v_queues FROM placed p;
            -- Jobs whose unique key changes hands with the state go one by one.
            PERFORM awa_queue.promote_one(i.job_id) FROM unnest(v_ids) AS i (job_id)
            WHERE EXISTS (SELECT FROM awa_queue.deferred_jobs d WHERE d.job_id = i.job_id);
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
        IF NOT awa_queue.is_row_fault(v_state) THEN
            RAISE;
        END IF;
        v_queues := NULL;
        SELECT count(*) FILTER (WHERE ok), count(*) FILTER (WHERE NOT ok) INTO moved, failed FROM (
            SELECT awa_queue.promote_carefully(d.job_id) AS ok FROM (
                SELECT x.job_id FROM awa_queue.deferred_jobs x WHERE x.run_at <= v_now
                ORDER BY x.run_at, x.job_id LIMIT least(p_rows, 256) FOR UPDATE SKIP LOCKED) d) r;
    END;
    FOREACH v_queue IN ARRAY coalesce(v_queues, '{}') LOOP
        PERFORM awa.wake(v_queue, awa.queue_channel(v_queue));
    END LOOP;
    SELECT x.run_at INTO next_due FROM awa_queue.deferred_jobs x ORDER BY x.run_at LIMIT 1;
    IF NOT EXISTS (SELECT FROM awa.storage_transition_state s WHERE s.state = 'active') THEN
        SELECT promote.moved + c.moved, promote.failed + c.failed, least(promote.next_due, c.next_due) INTO moved, failed, next_due
        FROM awa.promote_canonical(coalesce(p_canonical, p_rows)) c;
    END IF;
END $$;

-- The same for the log of a run: says of each job where it came from and where it went. One call, as ever: a client that freezes
-- between statements of a transaction would hold up every promoter.
CREATE FUNCTION awa_queue.promote_traced(
    p_rows integer, OUT moved integer, OUT failed integer, OUT next_due timestamptz, OUT steps jsonb, OUT is_whole boolean
) LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE v_due awa_queue.deferred_jobs[]; v_old awa_queue.deferred_jobs[];
BEGIN
    SELECT array_agg(d.job) INTO v_due FROM (
        SELECT x AS job FROM awa_queue.deferred_jobs x WHERE x.run_at <= clock_timestamp()
        ORDER BY x.run_at, x.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED) d;
    SELECT array_agg(d.job) INTO v_old FROM (
        SELECT ROW(s.*)::awa_queue.deferred_jobs AS job FROM awa.scheduled_jobs s WHERE s.run_at <= clock_timestamp()
        ORDER BY s.run_at, s.job_id LIMIT p_rows FOR UPDATE SKIP LOCKED) d;
    SELECT p.moved, p.failed, p.next_due INTO moved, failed, next_due
    FROM awa_queue.promote(coalesce(cardinality(v_due), 0), coalesce(cardinality(v_old), 0)) p;
    v_due := v_due || v_old;
    SELECT jsonb_agg(jsonb_build_object('job_id', d.job_id, 'run_lease', d.run_lease, 'from', d.state, 'to', coalesce(
        (SELECT x.state FROM awa_queue.deferred_jobs x WHERE x.job_id = d.job_id),
        (SELECT s.state FROM awa.scheduled_jobs s WHERE s.job_id = d.job_id),
        (SELECT x.state FROM awa_queue.terminal x WHERE x.job_id = d.job_id), 'available')))
    INTO steps FROM unnest(v_due) d;
    -- One that came due meanwhile, before those that were looked at, was moved instead of one of them.
    is_whole := moved + failed = coalesce(cardinality(v_due), 0);
END $$;

CREATE FUNCTION awa_queue.promote_one(p_job bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    j      awa_queue.deferred_jobs;
    v_from awa.job_state;
BEGIN
    DELETE FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job RETURNING d.* INTO j;
    IF FOUND THEN
        v_from := j.state;
        j.state := 'available';
        PERFORM awa_queue.land(j, v_from);
    END IF;
END $$;

-- One job in its own subtransaction; what cannot be promoted is recorded as failed and stops nobody else.
CREATE FUNCTION awa_queue.promote_carefully(p_job bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    j       awa_queue.deferred_jobs;
    v_error text;
    v_state text;
BEGIN
    PERFORM awa_queue.promote_one(p_job);
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
    IF NOT awa_queue.is_row_fault(v_state) THEN
        RAISE;
    END IF;
    DELETE FROM awa_queue.deferred_jobs d WHERE d.job_id = p_job RETURNING d.* INTO j;
    PERFORM awa_queue.write_off(j, 'could not be promoted: ' || v_error);
    RETURN false;
END $$;

-- Declare instances dead whose beat is too old by the database clock. From this commit on their beats and claims are refused.
CREATE FUNCTION awa.bury_instances() RETURNS SETOF uuid LANGUAGE sql SET search_path = pg_catalog AS $$
    UPDATE awa.instances i SET dead_at = clock_timestamp()
    WHERE i.dead_at IS NULL AND i.last_beat_at + i.stale_after < clock_timestamp() RETURNING i.id
$$;

-- Take back up to p_rows running attempts of dead instances (and of instances nobody knows). Attempts are not spent: neighbours
-- of a poison job are innocent; `rescues` counts, and beyond p_bound the job fails visibly. Parked attempts need no instance.
CREATE FUNCTION awa_queue.rescue_stale(p_rows integer, p_bound integer) RETURNS SETOF jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now  timestamptz := clock_timestamp();
    v_jobs awa_queue.leases[];
    l      awa_queue.leases;
    v_row  jsonb;
    v_rows jsonb[];
    v_state text;
BEGIN
    PERFORM FROM awa.instances i WHERE i.dead_at IS NOT NULL LIMIT 1;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM awa_queue.leases x WHERE x.state = 'running'
                                 AND NOT EXISTS (SELECT FROM awa.instances i WHERE i.id = x.instance)) THEN
        RETURN;
    END IF;
    SELECT array_agg(s.lease) INTO v_jobs FROM (
        SELECT x AS lease FROM awa_queue.leases x WHERE x.state = 'running'
        AND NOT EXISTS (SELECT FROM awa.instances i WHERE i.id = x.instance AND i.dead_at IS NULL)
        LIMIT p_rows FOR UPDATE SKIP LOCKED) s;
    IF v_jobs IS NULL THEN
        -- Nothing of theirs is left: the rows may go.
        DELETE FROM awa.instances i WHERE i.dead_at IS NOT NULL AND i.dead_at < v_now - interval '1 hour';
        RETURN;
    END IF;
    BEGIN
        WITH lost AS MATERIALIZED (SELECT * FROM unnest(v_jobs)),
        whole AS MATERIALIZED (
            SELECT o AS lease, awa_queue.whole(ROW(o.*)::awa_queue.leases) AS job FROM lost o
        ), innocent AS MATERIALIZED (
            SELECT (w.lease).lslot, w.job FROM whole w
            WHERE coalesce((w.job).rescues, 0) < p_bound AND ((w.job).unique_key IS NULL
                  OR get_bit((w.job).unique_states, 2) = get_bit((w.job).unique_states, 4))
        ), deleted AS (
            DELETE FROM awa_queue.leases x USING innocent n
            WHERE x.lslot = n.lslot AND x.job_id = (n.job).job_id AND x.run_lease = (n.job).run_lease RETURNING n.job
        ), landed AS (
            INSERT INTO awa_queue.deferred_jobs
            SELECT r.* FROM deleted d CROSS JOIN LATERAL awa_queue.rescued(d.job, v_now) r
            RETURNING *
        )
        SELECT array_agg(to_jsonb(d.*) || '{"rescue_reason": "stale_instance"}') INTO v_rows FROM landed d;
        PERFORM awa_queue.due_at(v_now);
        PERFORM awa.write_outbox(v_rows);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
        IF NOT awa_queue.is_row_fault(v_state) THEN
            RAISE;
        END IF;
        v_rows := NULL;
    END;
    RETURN QUERY SELECT r FROM unnest(v_rows) r;
    -- The rest, one by one: beyond the bound, a unique key that changes hands, or a batch that could not be written.
    FOREACH l IN ARRAY v_jobs LOOP
        IF EXISTS (SELECT FROM awa_queue.leases x WHERE x.job_id = l.job_id AND x.run_lease = l.run_lease) THEN
            v_row := awa_queue.rescue_one(l, 'stale_instance', p_bound, 0);
            IF v_row IS NOT NULL THEN RETURN NEXT v_row; END IF;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION awa_queue.rescued(j awa_queue.deferred_jobs, p_now timestamptz) RETURNS awa_queue.deferred_jobs LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    j.state := 'retryable';
    j.run_at := p_now;
    j.attempt := greatest(j.attempt - 1, 0);
    j.rescues := coalesce(j.rescues, 0) + 1;
    j.errors := awa_queue.with_error(j.errors, awa_queue.error_entry('rescued: the worker instance stopped beating', j.attempt + 1)
        || jsonb_build_object('rescue', 'stale_instance', 'started_at', to_jsonb(j.attempted_at), 'instance', j.instance));
    RETURN j;
END $$;

-- One rescue in its own subtransaction, whatever is wrong with the row. Returns the job as it landed, or NULL when somebody else has
-- ended the attempt.
CREATE FUNCTION awa_queue.rescue_one(l awa_queue.leases, p_why text, p_bound integer, p_delay float8) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    j       awa_queue.deferred_jobs;
    o       jsonb := jsonb_build_object('job_id', l.job_id, 'run_lease', l.run_lease, 'state', 'retryable', 'delay', p_delay);
    v_error text;
    v_state text;
    v_row   jsonb;
BEGIN
    BEGIN
        j := awa_queue.whole(l);
        IF p_why = 'stale_instance' THEN
            o := o || '{"uncount": true, "rescued": true, "error": "rescued: the worker instance stopped beating"}';
            IF coalesce(j.rescues, 0) >= p_bound THEN
                o := (o - 'uncount' - 'delay') || jsonb_build_object('state', 'failed', 'terminal', true, 'reason', 'rescue_bound',
                    'error', format('rescued %s times: its attempts keep ending with their worker', p_bound));
            END IF;
        ELSE
            o := o || jsonb_build_object('error', CASE p_why WHEN 'deadline_exceeded' THEN 'hard deadline exceeded' ELSE 'callback timed out' END);
            IF j.attempt >= j.max_attempts THEN
                o := (o - 'delay') || jsonb_build_object('state', 'failed', 'terminal', true,
                    'reason', CASE p_why WHEN 'deadline_exceeded' THEN 'max_attempts_exhausted' ELSE 'callback_timeout' END);
            END IF;
        END IF;
        j := awa_queue.settle_one(l.instance, o);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
        IF NOT awa_queue.is_row_fault(v_state) THEN
            RAISE;
        END IF;
        j := awa_queue.abandon(l, 'could not be rescued: ' || v_error);
    END;
    IF j.job_id IS NULL THEN
        RETURN NULL;
    END IF;
    v_row := awa_queue.landed(j) || jsonb_build_object('rescue_reason', p_why);
    PERFORM awa.write_outbox(ARRAY[v_row]);
    RETURN v_row;
END $$;

-- Attempts past their deadline by p_margin, so that this does not race the worker's own scope; the attempt counts.
CREATE FUNCTION awa_queue.rescue_deadlines(p_rows integer, p_margin float8, p_bound integer) RETURNS SETOF jsonb LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    l     awa_queue.leases;
    v_row jsonb;
BEGIN
    FOR l IN SELECT x.* FROM awa_queue.leases x
             WHERE x.state = 'running' AND x.deadline_at < clock_timestamp() - make_interval(secs => p_margin)
             LIMIT p_rows FOR UPDATE SKIP LOCKED LOOP
        v_row := awa_queue.rescue_one(l, 'deadline_exceeded', p_bound, awa_queue.backoff(l.attempt));
        IF v_row IS NOT NULL THEN RETURN NEXT v_row; END IF;
    END LOOP;
END $$;

-- 2^attempt seconds plus up to a quarter, at most a day; the exponent is clamped before anything is multiplied.
CREATE FUNCTION awa_queue.backoff(p_attempt integer) RETURNS float8 LANGUAGE sql VOLATILE SET search_path = pg_catalog AS $$
    SELECT least(86400.0, power(2.0::float8, least(greatest(p_attempt, 0), 20)) * (1 + 0.25 * random()))
$$;

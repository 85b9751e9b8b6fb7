-- The canonical plane at work: what differs from the queue plane. An attempt of it is a lease whose lslot is -1; the verbs of
-- 0005 and 0011 take such a lease like any other, and what they land goes where new jobs go at that moment.

-- The state of the transition. Until that is over, the answer holds until the end of the transaction: whoever changes it waits for us.
-- Once it is active it never changes again, and nobody locks anything. With the owner's rights: a row lock asks for the right to
-- update, which no producer has.
CREATE FUNCTION awa.held_state() RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE v_state text;
BEGIN
    SELECT s.state INTO v_state FROM awa.storage_transition_state s;
    IF v_state IS DISTINCT FROM 'active' THEN
        SELECT s.state INTO v_state FROM awa.storage_transition_state s FOR SHARE;
    END IF;
    RETURN coalesce(v_state, 'canonical');
END $$;

-- Whether jobs are written to the canonical plane.
CREATE FUNCTION awa.writes_canonical() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN awa.held_state() IN ('canonical', 'prepared');
END $$;

-- Whether the canonical plane is empty for good.
CREATE FUNCTION awa.is_finalized() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN EXISTS (SELECT FROM awa.storage_transition_state s WHERE s.state = 'active');
END $$;

-- Begin on the canonical plane: only where nothing has happened yet, since a runtime may already rely on `active` being final.
CREATE FUNCTION awa.start_canonical() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v awa.storage_transition_state := awa.lock_storage();
BEGIN
    IF v.state = 'canonical' THEN
        RETURN true;
    ELSIF v.state <> 'active' OR (SELECT q.is_called FROM awa.job_id_seq q) OR EXISTS (SELECT FROM awa.instances) THEN
        RETURN false;
    END IF;
    UPDATE awa.storage_transition_state SET current_engine = 'canonical', state = 'canonical', details = '{}', finalized_at = NULL,
           updated_at = clock_timestamp();
    RETURN true;
END $$;

CREATE FUNCTION awa.is_canonical(p_job bigint) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT EXISTS (SELECT FROM awa.scheduled_jobs s WHERE s.job_id = p_job) OR EXISTS (SELECT FROM awa.jobs_hot h WHERE h.job_id = p_job)
$$;

CREATE FUNCTION awa.insert_canonical(p_jobs awa_queue.new_job[], p_now timestamptz) RETURNS void LANGUAGE sql
SET search_path = pg_catalog AS $$
    INSERT INTO awa.jobs_hot (job_id, kind, queue, state, args, priority, max_attempts, shard, run_at, created_at, deadline_ms, metadata,
                              tags, unique_key, unique_states, pos, ready_at)
    SELECT j.job_id, j.kind, j.queue, 'available', j.args, j.priority, j.max_attempts, j.shard, p_now, p_now, j.deadline_ms, j.metadata,
           j.tags, j.unique_key, j.unique_states, j.job_id, p_now
    FROM unnest(p_jobs) j WHERE j.inserted AND j.run_at IS NULL;
    INSERT INTO awa.scheduled_jobs (job_id, kind, queue, state, args, priority, max_attempts, shard, run_at, created_at, deadline_ms,
                                    metadata, tags, unique_key, unique_states)
    SELECT j.job_id, j.kind, j.queue, 'scheduled', j.args, j.priority, j.max_attempts, j.shard, j.run_at, p_now, j.deadline_ms,
           j.metadata, j.tags, j.unique_key, j.unique_states
    FROM unnest(p_jobs) j WHERE j.inserted AND j.run_at IS NOT NULL;
$$;

-- Jobs become available in the canonical plane. p_since: since when they count as waiting.
CREATE FUNCTION awa.make_hot(p_jobs awa_queue.deferred_jobs[], p_positions bigint[], p_since timestamptz[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE j awa_queue.deferred_jobs; v_queue text;
BEGIN
    FOR i IN 1..cardinality(p_jobs) LOOP
        j := p_jobs[i];
        j.state := 'available'; j.attempted_at := NULL; j.instance := NULL; j.finalized_at := NULL;
        INSERT INTO awa.jobs_hot SELECT j.*, p_positions[i], coalesce(p_since[i], clock_timestamp()), NULL;
    END LOOP;
    FOR v_queue IN SELECT DISTINCT x.queue FROM unnest(p_jobs) x LOOP
        PERFORM awa.wake(v_queue, awa.queue_channel(v_queue));
    END LOOP;
END $$;

-- Claim these rows, which the caller has locked, in this order. A unique key that changes hands does so as in the queue plane.
CREATE FUNCTION awa.lease_hot(p_jobs bigint[], p_instance uuid, p_deadline_ms bigint, p_now timestamptz) RETURNS awa_queue.claim_batch
LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE v awa_queue.claim_batch; v_regain boolean;
BEGIN
    WITH claimed AS (
        UPDATE awa.jobs_hot h SET state = 'running', attempt = least(h.attempt + 1, 32767), run_lease = h.run_lease + 1,
               instance = p_instance, attempted_at = p_now,
               deadline_at = p_now + coalesce(h.deadline_ms, p_deadline_ms) * interval '1 millisecond'
        FROM unnest(p_jobs) WITH ORDINALITY AS i (job_id, ord) WHERE h.job_id = i.job_id AND h.state = 'available'
        RETURNING h.*, i.ord
    )
    SELECT array_agg(c.job_id), array_agg(c.run_lease), array_agg((-1)::smallint), array_agg(c.attempt), array_agg(c.max_attempts),
           array_agg(c.priority), array_agg(c.kind), array_agg(c.args::text), array_agg(c.created_at), array_agg(c.run_at),
           array_agg(c.deadline_at),
           array_agg(CASE WHEN num_nonnulls(c.metadata, c.tags, c.errors, c.progress, c.snoozes, c.rescues, c.interrupted, c.unique_key) > 0
               THEN jsonb_build_object('metadata', c.metadata, 'tags', c.tags, 'errors', c.errors, 'progress', c.progress,
                    'snoozes', c.snoozes, 'rescues', c.rescues, 'interrupted', c.interrupted,
                    'unique_key', encode(c.unique_key, 'hex'))::text END),
           bool_or(c.unique_key IS NOT NULL AND get_bit(c.unique_states, 2) <> get_bit(c.unique_states, 1))
    INTO v.job_ids, v.run_leases, v.lslots, v.attempts, v.max_attempts, v.priorities, v.kinds, v.args, v.created_at, v.run_at,
         v.deadline_at, v.extras, v_regain
    FROM (SELECT * FROM claimed ORDER BY ord) c;
    v.claimed_at := p_now;
    RETURN CASE WHEN v_regain THEN awa_queue.shift_claims(v) ELSE v END;
END $$;

-- The same, one row at a time: what cannot be claimed is recorded as failed, the rest is claimed.
CREATE FUNCTION awa.lease_hot_carefully(p_jobs bigint[], p_instance uuid, p_deadline_ms bigint, p_now timestamptz)
RETURNS awa_queue.claim_batch LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE v_job bigint; v_got awa_queue.claim_batch; v_all awa_queue.claim_batch; v_error text; v_state text;
BEGIN
    FOREACH v_job IN ARRAY p_jobs LOOP
        BEGIN
            v_got := awa.lease_hot(ARRAY[v_job], p_instance, p_deadline_ms, p_now);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
            IF NOT awa_queue.is_row_fault(v_state) THEN
                RAISE;
            END IF;
            PERFORM awa.write_off_canonical(v_job, 'could not be claimed: ' || v_error);
            CONTINUE;
        END;
        CONTINUE WHEN v_got.job_ids IS NULL;
        v_all := CASE WHEN v_all.job_ids IS NULL THEN v_got ELSE awa_queue.joined(v_all, v_got) END;
    END LOOP;
    RETURN v_all;
END $$;

-- The last resort for a canonical row, wherever it waits.
CREATE FUNCTION awa.write_off_canonical(p_job bigint, p_error text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE h awa.jobs_hot; j awa_queue.deferred_jobs;
BEGIN
    DELETE FROM awa.jobs_hot x WHERE x.job_id = p_job AND x.state <> 'completed' RETURNING x.* INTO h;
    IF FOUND THEN
        j := awa.job_of(h);
    ELSE
        DELETE FROM awa.scheduled_jobs s WHERE s.job_id = p_job RETURNING s.* INTO j;
    END IF;
    IF j.job_id IS NOT NULL THEN
        PERFORM awa_queue.write_off(j, p_error);
    END IF;
END $$;

-- Claim up to p_n canonical jobs of a queue; priorities age as in the queue plane.
CREATE FUNCTION awa.take_canonical(p_queue text, p_n integer, p_bytes bigint, p_instance uuid, p_aging float8, p_deadline_ms bigint)
RETURNS awa_queue.claim_batch LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_paused   boolean;
    v_deadline bigint;
    v_priority smallint;
    v_ids      bigint[];
    v_size     bigint;
    v_state    text;
    v_got      awa_queue.claim_batch;
    v_all      awa_queue.claim_batch;
BEGIN
    SELECT q.paused AND coalesce(q.paused_until > v_now, true), q.override_deadline_ms INTO v_paused, v_deadline
    FROM awa.queues q WHERE q.queue = p_queue;
    IF v_paused OR EXISTS (SELECT FROM awa.instances i WHERE i.id = p_instance AND i.dead_at IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    p_deadline_ms := nullif(coalesce(v_deadline, p_deadline_ms), 0);
    FOR v_priority IN
        SELECT l.priority FROM generate_series(1, 4) l (priority) CROSS JOIN LATERAL (
            SELECT h.ready_at FROM awa.jobs_hot h WHERE h.queue = p_queue AND h.priority = l.priority AND h.state = 'available'
            ORDER BY h.pos LIMIT 1) head
        ORDER BY CASE WHEN p_aging > 0
                      THEN greatest(1, l.priority - floor(extract(epoch FROM v_now - head.ready_at)::float8 / p_aging))
                      ELSE l.priority END, head.ready_at, l.priority
    LOOP
        SELECT array_agg(c.job_id ORDER BY c.pos), max(c.before + c.size) INTO v_ids, v_size FROM (
            SELECT s.*, sum(s.size) OVER (ORDER BY s.pos) - s.size AS before FROM (
                SELECT h.job_id, h.pos, octet_length(concat(h.args, h.metadata, h.errors, h.progress)) AS size FROM awa.jobs_hot h
                WHERE h.queue = p_queue AND h.priority = v_priority AND h.state = 'available'
                ORDER BY h.pos LIMIT p_n FOR UPDATE SKIP LOCKED) s) c
        WHERE c.before < p_bytes;
        CONTINUE WHEN v_ids IS NULL;
        BEGIN
            v_got := awa.lease_hot(v_ids, p_instance, p_deadline_ms, v_now);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
            IF NOT awa_queue.is_row_fault(v_state) THEN
                RAISE;
            END IF;
            v_got := awa.lease_hot_carefully(v_ids, p_instance, p_deadline_ms, v_now);
        END;
        p_n := p_n - cardinality(v_ids);
        p_bytes := p_bytes - v_size;
        CONTINUE WHEN v_got.job_ids IS NULL;
        v_all := CASE WHEN v_all.job_ids IS NULL THEN v_got ELSE awa_queue.joined(v_all, v_got) END;
        EXIT WHEN p_n <= 0 OR p_bytes <= 0;
    END LOOP;
    RETURN v_all;
END $$;

-- The claim while a transition is not over: old work first, so that it leaves, then (p_both) the queue plane for the rest. Jobs that
-- wait here come before those that wait there: positions are of one sequence, and the mover takes the newest first. It commits
-- before it answers, as awa_queue.claim does.
CREATE PROCEDURE awa.claim_planes(
    p_queue text, p_n integer, p_bytes bigint, p_instance uuid, p_aging float8, p_deadline_ms bigint, p_hints bigint[], p_both boolean,
    OUT job_ids bigint[], OUT run_leases bigint[], OUT lslots smallint[], OUT attempts smallint[], OUT max_attempts smallint[],
    OUT priorities smallint[], OUT kinds text[], OUT args text[], OUT created_at timestamptz[], OUT run_at timestamptz[],
    OUT deadline_at timestamptz[], OUT extras text[], OUT hints bigint[], OUT claimed_at timestamptz, OUT looked_ms float8
) LANGUAGE plpgsql AS $$
DECLARE v awa_queue.claim_batch; v_rest awa_queue.claim_batch; v_left integer; v_bytes bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    END IF;
    v := awa.take_canonical(p_queue, p_n, p_bytes, p_instance, p_aging, p_deadline_ms);
    v_left := p_n - coalesce(pg_catalog.cardinality(v.job_ids), 0);
    SELECT p_bytes - coalesce(sum(octet_length(concat(t.args, t.extras))), 0) INTO v_bytes FROM unnest(v.args, v.extras) t (args, extras);
    IF p_both AND v_left > 0 AND v_bytes > 0 THEN
        v_rest := awa_queue.take(p_queue, v_left, v_bytes, p_instance, p_aging, p_deadline_ms, p_hints);
        v := CASE WHEN v.job_ids IS NULL THEN v_rest ELSE awa_queue.joined(v, v_rest) END;
    END IF;
    COMMIT;
    job_ids := v.job_ids; run_leases := v.run_leases; lslots := v.lslots; attempts := v.attempts; max_attempts := v.max_attempts;
    priorities := v.priorities; kinds := v.kinds; args := v.args; created_at := v.created_at; run_at := v.run_at;
    deadline_at := v.deadline_at; extras := v.extras; hints := v.hints; claimed_at := v.claimed_at; looked_ms := v.looked_ms;
END $$;

-- Complete canonical attempts of p_instance where they stand: history of this plane stays here until its retention is over. Their
-- keys go, or are taken once more, as the mask says; a job completes with or without its key. Returns the ids that were completed.
CREATE FUNCTION awa.complete_canonical(p_jobs bigint[], p_leases bigint[], p_instance uuid, p_results text[], p_at timestamptz)
RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE h awa.jobs_hot; v_completed bigint[];
BEGIN
    FOR h IN SELECT x.* FROM unnest(p_jobs, p_leases) AS i (job_id, run_lease) JOIN awa.jobs_hot x ON x.job_id = i.job_id
             WHERE x.run_lease = i.run_lease AND x.instance = p_instance AND x.state IN ('running', 'waiting_external')
             ORDER BY x.job_id FOR UPDATE OF x LOOP
        UPDATE awa.jobs_hot x SET state = 'completed', finalized_at = p_at, deadline_at = NULL, progress = NULL,
               result = CASE WHEN p_results IS NOT NULL THEN p_results[array_position(p_jobs, h.job_id)]::jsonb END
        WHERE x.job_id = h.job_id;
        v_completed := v_completed || h.job_id;
        IF h.unique_key IS NOT NULL AND get_bit(h.unique_states, 3) = 0 THEN
            DELETE FROM awa.job_unique_claims c WHERE c.unique_key = h.unique_key AND c.job_id = h.job_id;
        ELSIF h.unique_key IS NOT NULL AND get_bit(h.unique_states, awa.state_bit(h.state)) = 0 THEN
            PERFORM awa_queue.try_claim(h.unique_key, h.job_id);
        END IF;
    END LOOP;
    RETURN v_completed;
END $$;

-- Forget completed jobs of the canonical plane past p_completed (per queue where set), and the keys only their history still held.
CREATE FUNCTION awa.forget_canonical(p_rows integer, p_completed interval) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_count bigint;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT h.job_id FROM awa.jobs_hot h LEFT JOIN awa.queues q ON q.queue = h.queue
        WHERE h.state = 'completed' AND h.finalized_at < clock_timestamp() - coalesce(q.completed_retention, p_completed)
        ORDER BY h.finalized_at LIMIT p_rows FOR UPDATE OF h SKIP LOCKED
    ), gone AS (
        DELETE FROM awa.jobs_hot h USING picked p WHERE h.job_id = p.job_id RETURNING h.job_id, h.unique_key
    ), released AS (
        DELETE FROM awa.job_unique_claims c USING gone g WHERE c.unique_key = g.unique_key AND c.job_id = g.job_id
    )
    SELECT count(*) INTO v_count FROM gone;
    RETURN v_count;
END $$;

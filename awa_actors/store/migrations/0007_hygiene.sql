-- Space comes back by TRUNCATE of emptied partitions, also while another session pins the horizon.
-- Verification is always a statement of its own AFTER the lock, under read committed: an older snapshot could miss a row.

-- Append a turn if `p_generation` is still the newest: the append is the compare-and-swap. The next slot is any empty one, best
-- one that was truncated: what was only emptied still has its dead rows.
CREATE FUNCTION awa_queue.turn(p_ring text, p_generation bigint) RETURNS smallint LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_table text := CASE p_ring WHEN 'segments' THEN 'bodies' ELSE p_ring END;
    v_slots integer := CASE p_ring WHEN 'leases' THEN 4 ELSE 8 END;
    v_now   smallint := awa_queue.current_slot(p_ring);
    v_next  integer;
    v_slot  integer;
    v_busy  boolean;
BEGIN
    FOR i IN 1..v_slots - 1 LOOP
        v_slot := (v_now + i) % v_slots;
        EXECUTE format('SELECT EXISTS (SELECT FROM awa_queue.%I)', v_table || '_' || v_slot) INTO v_busy;
        CONTINUE WHEN v_busy;
        IF pg_relation_size(format('awa_queue.%I', v_table || '_' || v_slot)::regclass) = 0 THEN
            v_next := v_slot;
            EXIT;
        END IF;
        v_next := coalesce(v_next, v_slot);
    END LOOP;
    IF v_next IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO awa_queue.ring_turns (ring, generation, slot) VALUES (p_ring, p_generation + 1, v_next) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM awa_queue.emptied_slots e WHERE e.ring = p_ring AND e.slot = v_next;
    DELETE FROM awa_queue.ring_turns t WHERE t.ring = p_ring AND t.generation < p_generation - 16;
    RETURN v_next;
END $$;

-- Truncate a slot: look without a lock, lock (never waiting), verify in a new statement, truncate. Outcome: truncated, empty, current,
-- live, history (only completed jobs inside retention are left), settling (found empty less than p_settle ago), busy.
-- `busy` names the process that holds a lock on it. With a segment go the unique keys that only its history still holds.
CREATE FUNCTION awa_queue.truncate_slot(
    p_ring text, p_slot integer, p_retention interval, p_settle interval DEFAULT '5 seconds', OUT outcome text, OUT blocker integer
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_names text[] := CASE p_ring WHEN 'segments' THEN ARRAY['bodies_' || p_slot, 'done_' || p_slot] ELSE ARRAY[p_ring || '_' || p_slot] END;
    v_name  text;
    v_size  bigint := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'truncation needs read committed' USING ERRCODE = 'invalid_transaction_state';
    ELSIF awa_queue.current_slot(p_ring) = p_slot THEN
        outcome := 'current';
        RETURN;
    END IF;
    FOREACH v_name IN ARRAY v_names LOOP
        v_size := v_size + pg_relation_size(format('awa_queue.%I', v_name)::regclass);
    END LOOP;
    IF v_size = 0 THEN
        outcome := 'empty';
        RETURN;
    END IF;
    -- Claims lock every partition: nobody is to queue behind a look that finds what it keeps finding.
    outcome := awa_queue.slot_content(p_ring, p_slot, p_retention);
    IF outcome IS NULL THEN
        SELECT t.outcome, t.blocker INTO outcome, blocker FROM awa_queue.truncate_names(p_ring, p_slot, v_names, p_retention, p_settle) t;
    END IF;
    IF outcome = 'settling' THEN
        INSERT INTO awa_queue.emptied_slots (ring, slot) VALUES (p_ring, p_slot) ON CONFLICT DO NOTHING;
    ELSIF outcome NOT IN ('busy', 'history') THEN
        DELETE FROM awa_queue.emptied_slots e WHERE e.ring = p_ring AND e.slot = p_slot;
    END IF;
END $$;

CREATE FUNCTION awa_queue.truncate_names(
    p_ring text, p_slot integer, p_names text[], p_retention interval, p_settle interval, OUT outcome text, OUT blocker integer
) LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_name    text;
    v_settled boolean := p_settle <= interval '0' OR EXISTS (
        SELECT FROM awa_queue.emptied_slots e
        WHERE e.ring = p_ring AND e.slot = p_slot AND e.found_at <= clock_timestamp() - p_settle);
BEGIN
    FOREACH v_name IN ARRAY p_names LOOP
        EXECUTE format('LOCK TABLE ONLY awa_queue.%I IN ACCESS EXCLUSIVE MODE NOWAIT', v_name);
    END LOOP;
    outcome := coalesce(awa_queue.slot_content(p_ring, p_slot, p_retention),
                        CASE WHEN awa_queue.current_slot(p_ring) = p_slot THEN 'current' WHEN NOT v_settled THEN 'settling' END);
    IF outcome IS NOT NULL THEN
        -- Give the locks back at once: an exception ends the subtransaction that holds them.
        RAISE EXCEPTION 'not now' USING ERRCODE = 'AWA02';
    END IF;
    IF p_ring = 'segments' THEN
        -- Under the lock: a job that completed after an earlier release would take its unique key with it for ever.
        PERFORM awa_queue.release_history_claims(p_slot, p_retention);
    END IF;
    FOREACH v_name IN ARRAY p_names LOOP
        EXECUTE format('TRUNCATE TABLE ONLY awa_queue.%I', v_name);
    END LOOP;
    outcome := 'truncated';
EXCEPTION
    WHEN SQLSTATE 'AWA02' THEN
        NULL;
    WHEN lock_not_available THEN
        outcome := 'busy';
        SELECT l.pid INTO blocker FROM pg_locks l
        WHERE l.relation = format('awa_queue.%I', v_name)::regclass AND l.granted AND l.pid <> pg_backend_pid() LIMIT 1;
END $$;

-- What in this slot is still needed: 'live' (ready or leased), 'history' (inside retention), or NULL. One statement, one snapshot:
-- a job that moves between ready and leases is seen in exactly one of them.
CREATE FUNCTION awa_queue.slot_content(p_ring text, p_slot integer, p_retention interval) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_content text;
BEGIN
    IF p_ring = 'segments' THEN
        -- The youngest job usually ended last, and an index finds it: most looks end there.
        SELECT CASE WHEN (SELECT d.finalized_at FROM awa_queue.done d WHERE d.slot = p_slot ORDER BY d.job_id DESC LIMIT 1)
                         > clock_timestamp() - p_retention
                    THEN 'history'
                    WHEN EXISTS (SELECT FROM awa_queue.leases l WHERE l.slot = p_slot)
                      OR EXISTS (SELECT FROM awa_queue.ready r WHERE r.slot = p_slot)
                      OR EXISTS (SELECT FROM awa_queue.parked_ready r WHERE r.slot = p_slot)
                    THEN 'live'
                    WHEN EXISTS (SELECT FROM awa_queue.done d WHERE d.slot = p_slot AND d.finalized_at > clock_timestamp() - p_retention)
                    THEN 'history' END
        INTO v_content;
    ELSE
        EXECUTE format('SELECT CASE WHEN EXISTS (SELECT FROM awa_queue.%I) THEN ''live'' END', p_ring || '_' || p_slot) INTO v_content;
    END IF;
    RETURN v_content;
END $$;

-- Give back the unique keys that only completed history in this segment still holds.
CREATE FUNCTION awa_queue.release_history_claims(p_slot integer, p_retention interval) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_count bigint;
BEGIN
    DELETE FROM awa.job_unique_claims c USING awa_queue.bodies b, awa_queue.done d
    WHERE b.slot = p_slot AND b.unique_key IS NOT NULL AND d.slot = p_slot AND d.job_id = b.job_id
      AND d.finalized_at <= clock_timestamp() - p_retention AND c.unique_key = b.unique_key AND c.job_id = b.job_id;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Move leases that keep a slot from emptying to the current one: delete and insert, never an update of the partition key.
CREATE FUNCTION awa_queue.carry_leases(p_slot integer, p_rows integer) RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE v_slot smallint := awa_queue.current_slot('leases'); v_count integer;
BEGIN
    IF v_slot = p_slot THEN
        RETURN 0;
    END IF;
    WITH picked AS MATERIALIZED (
        SELECT l.job_id FROM awa_queue.leases l WHERE l.lslot = p_slot LIMIT p_rows FOR UPDATE SKIP LOCKED
    ), moved AS (
        DELETE FROM awa_queue.leases l USING picked p WHERE l.lslot = p_slot AND l.job_id = p.job_id RETURNING l.*
    )
    INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at, state, deadline_at, progress, metadata)
    SELECT v_slot, m.slot, m.attempt, m.frees_claim, m.job_id, m.run_lease, m.instance, m.claimed_at, m.state, m.deadline_at, m.progress, m.metadata
    FROM moved m;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Ready rows of paused queues leave the ring once, for a plain table; the first claims after a pause bring them back.
CREATE FUNCTION awa_queue.park_ready(p_slot integer, p_rows integer) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v_count integer;
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT r.ctid AS tid FROM awa_queue.ready r JOIN awa.queues q ON q.queue = r.queue
        WHERE r.rslot = p_slot AND q.paused AND coalesce(q.paused_until > clock_timestamp(), true)
        LIMIT p_rows FOR UPDATE OF r SKIP LOCKED
    ), moved AS (
        DELETE FROM awa_queue.ready r USING picked p WHERE r.rslot = p_slot AND r.ctid = p.tid RETURNING r.*
    )
    INSERT INTO awa_queue.parked_ready SELECT m.* FROM moved m;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- What a claim does first for a queue that was resumed: the first p_rows of each of its lanes return to the ring, in order and with
-- the places they had. As many of each lane as the claim may take at all: nothing newer in a lane overtakes what was parked.
CREATE FUNCTION awa_queue.unpark(p_queue text, p_lanes smallint, p_rows integer) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT r.tid FROM generate_series(1, 4) p CROSS JOIN generate_series(0, p_lanes - 1) s CROSS JOIN LATERAL (
            SELECT x.ctid AS tid FROM awa_queue.parked_ready x
            WHERE x.queue = p_queue AND x.priority = p::smallint AND x.shard = s::smallint
            ORDER BY x.pos LIMIT p_rows FOR UPDATE SKIP LOCKED) r
    ), moved AS (
        DELETE FROM awa_queue.parked_ready r USING picked p WHERE r.ctid = p.tid RETURNING r.*
    )
    INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
    SELECT awa_queue.current_slot('ready'), m.priority, m.shard, m.slot, m.attempt, m.pos, m.job_id, m.run_lease, m.ready_at, m.queue
    FROM moved m;
END $$;

-- Bodies that are still needed leave a segment that should empty: copied to the current segment, their lease or ready row
-- re-addressed in place. Readers of the old address look once more in a new statement.
CREATE FUNCTION awa_queue.carry_bodies(p_slot integer, p_rows integer) RETURNS integer LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
DECLARE
    v_slot smallint := awa_queue.current_slot('segments');
    v_jobs bigint[];
    v_more bigint[];
    v_park bigint[];
BEGIN
    IF v_slot = p_slot THEN
        RETURN 0;
    END IF;
    SELECT array_agg(l.job_id) INTO v_jobs FROM (
        SELECT x.job_id FROM awa_queue.leases x WHERE x.slot = p_slot LIMIT p_rows FOR UPDATE SKIP LOCKED) l;
    SELECT array_agg(r.job_id) INTO v_more FROM (
        SELECT x.job_id FROM awa_queue.ready x WHERE x.slot = p_slot LIMIT p_rows - coalesce(cardinality(v_jobs), 0) FOR UPDATE SKIP LOCKED) r;
    SELECT array_agg(r.job_id) INTO v_park FROM (
        SELECT x.job_id FROM awa_queue.parked_ready x WHERE x.slot = p_slot
        LIMIT p_rows - coalesce(cardinality(v_jobs), 0) - coalesce(cardinality(v_more), 0) FOR UPDATE SKIP LOCKED) r;
    DELETE FROM awa_queue.bodies b WHERE b.slot = v_slot AND b.job_id = ANY (v_jobs || v_more || v_park);
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args, pos, run_at, deadline_ms,
        metadata, tags, errors, progress, unique_key, unique_states, snoozes, rescues, interrupted, past)
    SELECT v_slot, b.priority, b.max_attempts, b.shard, b.job_id, b.created_at, b.kind, b.queue, b.args, b.pos, b.run_at, b.deadline_ms,
           b.metadata, b.tags, b.errors, b.progress, b.unique_key, b.unique_states, b.snoozes, b.rescues, b.interrupted, b.past
    FROM awa_queue.bodies b WHERE b.slot = p_slot AND b.job_id = ANY (v_jobs || v_more || v_park);
    UPDATE awa_queue.leases l SET slot = v_slot WHERE l.slot = p_slot AND l.job_id = ANY (v_jobs);
    UPDATE awa_queue.ready r SET slot = v_slot WHERE r.slot = p_slot AND r.job_id = ANY (v_more);
    UPDATE awa_queue.parked_ready r SET slot = v_slot WHERE r.slot = p_slot AND r.job_id = ANY (v_park);
    RETURN coalesce(cardinality(v_jobs || v_more || v_park), 0);
END $$;

-- Forget ended jobs: failed and cancelled ones past p_failed (per queue where set), dead letters past p_dlq.
CREATE FUNCTION awa_queue.forget(p_rows integer, p_failed interval, p_dlq interval, OUT terminal bigint, OUT dead bigint) LANGUAGE plpgsql
SET search_path = pg_catalog AS $$
BEGIN
    WITH picked AS MATERIALIZED (
        SELECT t.job_id FROM awa_queue.terminal t LEFT JOIN awa.queues q ON q.queue = t.queue
        WHERE t.finalized_at < clock_timestamp() - coalesce(q.failed_retention, p_failed) LIMIT p_rows FOR UPDATE OF t SKIP LOCKED
    ), gone AS (
        DELETE FROM awa_queue.terminal t USING picked p WHERE t.job_id = p.job_id RETURNING t.job_id, t.unique_key
    ), released AS (
        DELETE FROM awa.job_unique_claims c USING gone g WHERE c.unique_key = g.unique_key AND c.job_id = g.job_id
    )
    SELECT count(*) INTO terminal FROM gone;
    WITH picked AS MATERIALIZED (
        SELECT t.job_id FROM awa_queue.dlq_entries t LEFT JOIN awa.queues q ON q.queue = t.queue
        WHERE t.dlq_at < clock_timestamp() - coalesce(q.dlq_retention, p_dlq) LIMIT p_rows FOR UPDATE OF t SKIP LOCKED
    ), gone AS (
        DELETE FROM awa_queue.dlq_entries t USING picked p WHERE t.job_id = p.job_id RETURNING t.job_id, t.unique_key
    ), released AS (
        DELETE FROM awa.job_unique_claims c USING gone g WHERE c.unique_key = g.unique_key AND c.job_id = g.job_id
    )
    SELECT count(*) INTO dead FROM gone;
END $$;

-- End own-role sessions of a runtime that stopped reading in the middle of an answer and so keep a transaction open.
CREATE FUNCTION awa.end_stuck_sessions(p_after interval) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE v_count integer;
BEGIN
    SELECT count(pg_terminate_backend(a.pid)) INTO v_count FROM pg_stat_activity a
    WHERE a.usename = current_user AND a.application_name LIKE 'awa_actors%' AND a.pid <> pg_backend_pid()
      AND a.datname = current_database() AND a.state = 'active' AND a.wait_event = 'ClientWrite'
      AND a.xact_start < clock_timestamp() - p_after;
    RETURN v_count;
END $$;

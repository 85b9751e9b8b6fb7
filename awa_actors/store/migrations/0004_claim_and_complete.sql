-- Claim and complete: the two server calls of the hot path.
-- Statistics of churning tables are always wrong, so plans are pinned: no sequential scan, no hash or merge join, no JIT.

-- Everything about a claimed job that few jobs have, as one JSON object (NULL when there is none of it).
-- No SET clause: it must be inlined, a call per row would double the price of a claim. Nulls stay: to strip them would also
-- strip those inside the user's own values.
CREATE FUNCTION awa_queue.extras(b awa_queue.bodies) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN num_nonnulls(b.metadata, b.tags, b.errors, b.progress, b.snoozes, b.rescues, b.interrupted, b.unique_key) > 0
        THEN jsonb_build_object('metadata', b.metadata, 'tags', b.tags, 'errors', b.errors,
             'progress', b.progress, 'snoozes', b.snoozes, 'rescues', b.rescues, 'interrupted', b.interrupted,
             'unique_key', encode(b.unique_key, 'hex'))::text END
$$;

CREATE TYPE awa_queue.claim_batch AS (
    job_ids bigint[], run_leases bigint[], lslots smallint[], attempts smallint[], max_attempts smallint[],
    priorities smallint[], kinds text[], args text[], created_at timestamptz[], run_at timestamptz[],
    deadline_at timestamptz[], extras text[], hints bigint[], claimed_at timestamptz, looked_ms float8);

-- Which failures are the row's own, so that it is to be isolated: bad data, constraints, limits, a body that is missing or cannot be
-- read. Everything else (locks, resources, rights, a server that goes down) says nothing about the row: the whole call fails.
CREATE FUNCTION awa_queue.is_row_fault(p_sqlstate text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog AS $$
    SELECT left(p_sqlstate, 2) IN ('21', '22', '23', '44', '54', 'P0') OR p_sqlstate IN ('AWA01', 'XX001', 'XX002')
$$;

-- take_claim for a job that is on its way and must not wait for a stranger's transaction. NULL: taken; 0: nobody can tell yet,
-- since an open transaction is about to take the key or to give it back; otherwise the job that holds it.
-- One wait per transaction is worth its time, a batch of them is not.
CREATE FUNCTION awa_queue.try_claim(p_key bytea, p_job bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog SET lock_timeout = '50ms' AS $$
BEGIN
    IF current_setting('awa.claim_waited', true) = 'yes' THEN
        PERFORM set_config('lock_timeout', '1ms', true);
    END IF;
    BEGIN
        RETURN awa_queue.take_claim(p_key, p_job);
    EXCEPTION WHEN lock_not_available THEN
        PERFORM set_config('awa.claim_waited', 'yes', true);
        RETURN 0;
    END;
END $$;

-- Take visible rows of one lane, in slots p_low to p_high, in position order until there are p_n of them or p_bytes are reached. What
-- counts is the text that is sent, args and extras: what is stored may be compressed. Without p_texts args are left out, see take.
-- Shape: ready rows out, leases in; the bodies stay where they are. Returns the batch, its hints being the last position and the size.
CREATE FUNCTION awa_queue.take_lane(
    p_queue text, p_priority smallint, p_shard smallint, p_from bigint, p_n integer, p_bytes bigint, p_instance uuid,
    p_deadline_ms bigint, p_lslot smallint, p_low smallint, p_high smallint, p_texts boolean
) RETURNS awa_queue.claim_batch LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v awa_queue.claim_batch; v_last bigint; v_size bigint; v_bodied bigint; v_regain boolean;
BEGIN
    WITH moment AS MATERIALIZED (
        SELECT clock_timestamp() AS now -- after the snapshot: what is claimed is older
    ), candidate AS MATERIALIZED (
        SELECT r.rslot, r.ctid AS tid, r.job_id, r.slot, r.run_lease, r.attempt, r.pos
        FROM awa_queue.ready r
        WHERE r.rslot BETWEEN p_low AND p_high
          AND r.queue = p_queue AND r.priority = p_priority AND r.shard = p_shard AND r.pos >= p_from
        ORDER BY r.pos LIMIT p_n FOR UPDATE SKIP LOCKED
    ), sized AS MATERIALIZED (
        SELECT t.*, sum(t.size) OVER (ROWS UNBOUNDED PRECEDING) - t.size AS before FROM (
            SELECT c.*, b.bodied, b.kind, CASE WHEN p_texts THEN b.text END AS text, b.max_attempts, b.created_at, b.run_at, b.is_unique,
                   b.unique_states, b.deadline, b.extras, octet_length(b.text) + coalesce(octet_length(b.extras), 0) AS size
            FROM candidate c
            LEFT JOIN LATERAL (
                SELECT x.job_id AS bodied, x.kind, x.args::text AS text, x.max_attempts, x.created_at, x.run_at,
                       x.unique_key IS NOT NULL AS is_unique, x.unique_states,
                       coalesce(x.deadline_ms, p_deadline_ms) * interval '1 millisecond' AS deadline, awa_queue.extras(x) AS extras
                FROM awa_queue.bodies x WHERE x.slot = c.slot AND x.job_id = c.job_id OFFSET 0) b ON true) t
    ), deleted AS (
        DELETE FROM awa_queue.ready r USING sized s
        WHERE r.rslot BETWEEN p_low AND p_high AND r.rslot = s.rslot AND r.ctid = s.tid AND coalesce(s.before, 0) < p_bytes
        RETURNING s.*
    ), leased AS (
        INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at, deadline_at)
        SELECT p_lslot, d.slot, least(d.attempt + 1, 32767),
               d.is_unique AND (get_bit(d.unique_states, 3) = 0 OR get_bit(d.unique_states, 2) = 0),
               d.job_id, d.run_lease + 1, p_instance, m.now, m.now + d.deadline
        FROM deleted d, moment m
    )
    SELECT array_agg(d.job_id), array_agg(d.run_lease + 1), array_agg(p_lslot), array_agg(least(d.attempt + 1, 32767)::smallint),
           array_agg(d.max_attempts), array_agg(p_priority), array_agg(d.kind), array_agg(d.text), array_agg(d.created_at),
           array_agg(d.run_at), array_agg(m.now + d.deadline), array_agg(d.extras), max(m.now), max(d.pos), sum(d.size), count(d.bodied),
           bool_or(d.is_unique AND get_bit(d.unique_states, 2) <> get_bit(d.unique_states, 1))
    INTO v.job_ids, v.run_leases, v.lslots, v.attempts, v.max_attempts, v.priorities, v.kinds, v.args, v.created_at, v.run_at,
         v.deadline_at, v.extras, v.claimed_at, v_last, v_size, v_bodied, v_regain
    FROM deleted d, moment m;
    IF v_bodied <> cardinality(v.job_ids) THEN
        RAISE EXCEPTION 'a claimed job has no visible body' USING ERRCODE = 'AWA01';
    END IF;
    v.hints := ARRAY[v_last, v_size];
    RETURN CASE WHEN v_regain THEN awa_queue.shift_claims(v) ELSE v END;
END $$;

-- Take one row that the caller has seen, unless another has it meanwhile: in small statements, since to start one over the rings costs
-- by what it says.
CREATE FUNCTION awa_queue.take_one(
    p_rslot smallint, p_at tid, p_priority smallint, p_pos bigint, p_job bigint, p_slot smallint, p_run_lease bigint, p_attempt smallint,
    p_instance uuid, p_deadline_ms bigint, p_lslot smallint
) RETURNS awa_queue.claim_batch LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v awa_queue.claim_batch; v_body record; v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM awa_queue.ready r WHERE r.rslot = p_rslot AND r.ctid = (
        SELECT c.ctid FROM awa_queue.ready c WHERE c.rslot = p_rslot AND c.ctid = p_at FOR UPDATE SKIP LOCKED);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT x.kind, x.args::text AS text, x.max_attempts, x.created_at, x.run_at, awa_queue.extras(x) AS extras,
           v_now + coalesce(x.deadline_ms, p_deadline_ms) * interval '1 millisecond' AS deadline_at,
           get_bit(x.unique_states, 1) AS available, get_bit(x.unique_states, 2) AS running, get_bit(x.unique_states, 3) AS completed
    INTO v_body FROM awa_queue.bodies x WHERE x.slot = p_slot AND x.job_id = p_job;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a claimed job has no visible body' USING ERRCODE = 'AWA01';
    END IF;
    p_attempt := least(p_attempt + 1, 32767);
    INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at, deadline_at)
    VALUES (p_lslot, p_slot, p_attempt, coalesce(v_body.completed = 0 OR v_body.running = 0, false), p_job,
            p_run_lease + 1, p_instance, v_now, v_body.deadline_at);
    v.job_ids := ARRAY[p_job];
    v.attempts := ARRAY[p_attempt];
    v.run_leases := ARRAY[p_run_lease + 1];
    v.lslots := ARRAY[p_lslot];
    v.max_attempts := ARRAY[v_body.max_attempts];
    v.priorities := ARRAY[p_priority];
    v.kinds := ARRAY[v_body.kind];
    v.args := ARRAY[v_body.text];
    v.created_at := ARRAY[v_body.created_at];
    v.run_at := ARRAY[v_body.run_at];
    v.deadline_at := ARRAY[v_body.deadline_at];
    v.extras := ARRAY[v_body.extras];
    v.hints := ARRAY[p_pos, octet_length(v_body.text) + coalesce(octet_length(v_body.extras), 0)];
    v.claimed_at := v_now;
    RETURN CASE WHEN v_body.running <> v_body.available THEN awa_queue.shift_claims(v) ELSE v END;
END $$;

-- Unique keys whose mask differs between available and running change hands at claim. A job that must regain a key which a
-- newer job holds ends here as a duplicate; one whose key is undecided waits a second outside the queue, so that it holds up
-- nobody. Both leave the batch as rows without a kind.
CREATE FUNCTION awa_queue.shift_claims(p_batch awa_queue.claim_batch) RETURNS awa_queue.claim_batch LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off AS $$
DECLARE
    v_lease  awa_queue.leases;
    v_row    awa_queue.deferred_jobs;
    v_holder bigint;
BEGIN
    FOR i IN 1..cardinality(p_batch.job_ids) LOOP
        CONTINUE WHEN p_batch.extras[i]::jsonb ->> 'unique_key' IS NULL;
        SELECT l.* INTO v_lease FROM awa_queue.leases l WHERE l.lslot = p_batch.lslots[i] AND l.job_id = p_batch.job_ids[i];
        IF NOT FOUND THEN
            SELECT (awa.lease_of(h)).* INTO v_lease FROM awa.jobs_hot h WHERE h.job_id = p_batch.job_ids[i];
        END IF;
        v_row := awa_queue.whole(v_lease);
        IF get_bit(v_row.unique_states, 2) = get_bit(v_row.unique_states, 1) THEN
            CONTINUE;
        ELSIF get_bit(v_row.unique_states, 2) = 0 THEN
            DELETE FROM awa.job_unique_claims c WHERE c.unique_key = v_row.unique_key AND c.job_id = v_row.job_id;
            CONTINUE;
        END IF;
        v_holder := awa_queue.try_claim(v_row.unique_key, v_row.job_id);
        CONTINUE WHEN v_holder IS NULL;
        PERFORM awa_queue.drop_lease(v_lease);
        p_batch.kinds[i] := NULL;
        IF v_holder = 0 THEN
            v_row.attempt := greatest(v_row.attempt - 1, 0);
            PERFORM awa_queue.postpone(v_row, 'available');
        ELSE
            PERFORM awa_queue.end_as_duplicate(v_row);
        END IF;
    END LOOP;
    RETURN p_batch;
END $$;

-- Claim up to p_n jobs: look at the head of each lane, order lanes by effective priority and age, take from the best until full.
-- p_hints: per lane the position where this claimer last found work; empty to look from the beginning. Wrong hints cost time,
-- never jobs. looked_ms: what it took to find the heads, which tells a claimer when a look from the beginning is dear.
-- A job that is alone in its lane is taken by itself; what a lane cannot give as a batch it gives row by row.
CREATE FUNCTION awa_queue.take(
    p_queue text, p_n integer, p_bytes bigint, p_instance uuid, p_aging float8, p_deadline_ms bigint, p_hints bigint[]
) RETURNS awa_queue.claim_batch LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now      timestamptz := clock_timestamp();
    v_hints    bigint[];
    v_lslot    smallint;
    v_shards   smallint;
    v_dead     boolean;
    v_paused   boolean;
    v_parked   boolean;
    v_low      smallint;
    v_high     smallint;
    v_deadline bigint;
    v_left     integer := p_n;
    v_bytes    bigint := p_bytes;
    v_lane     record;
    v_large    boolean := false;
    v_began    timestamptz;
    v_looked   interval;
    v_from     bigint;
    v_size     bigint;
    v_n        integer;
    v_state    text;
    v_got      awa_queue.claim_batch;
    v_all      awa_queue.claim_batch;
BEGIN
    -- All that a claim wants to know first, in one statement: to start one costs more than to run it. A slot whose file is empty has no
    -- row of anybody's, and what a statement need not look at when it starts costs a lone job nothing.
    SELECT EXISTS (SELECT FROM awa.instances i WHERE i.id = p_instance AND i.dead_at IS NOT NULL),
           coalesce(q.lanes, 1), q.paused AND coalesce(q.paused_until > v_now, true), q.override_deadline_ms,
           EXISTS (SELECT FROM awa_queue.parked_ready r WHERE r.queue = p_queue),
           (SELECT t.slot FROM awa_queue.ring_turns t WHERE t.ring = 'leases' ORDER BY t.generation DESC LIMIT 1), filled.low, filled.high
    INTO v_dead, v_shards, v_paused, v_deadline, v_parked, v_lslot, v_low, v_high
    FROM (SELECT min(r.place) - 1 AS low, max(r.place) - 1 AS high
          FROM unnest(ARRAY['awa_queue.ready_0', 'awa_queue.ready_1', 'awa_queue.ready_2', 'awa_queue.ready_3', 'awa_queue.ready_4',
                            'awa_queue.ready_5', 'awa_queue.ready_6', 'awa_queue.ready_7']::regclass[]) WITH ORDINALITY r (slot, place)
          WHERE pg_relation_size(r.slot) > 0) filled
    LEFT JOIN awa.queues q ON q.queue = p_queue;
    IF v_dead OR v_paused OR p_n < 1 THEN
        RETURN NULL;
    END IF;
    IF v_parked THEN
        PERFORM awa_queue.unpark(p_queue, v_shards, p_n);
        p_hints := '{}';
        v_low := 0;
        v_high := 7;
    END IF;
    p_deadline_ms := nullif(coalesce(v_deadline, p_deadline_ms), 0);
    -- Always whole: to assign to an element of an empty array would make it the first one that drivers see.
    v_hints := (coalesce(p_hints, '{}') || array_fill(0::bigint, ARRAY[4 * v_shards]))[1:4 * v_shards];
    v_began := clock_timestamp();
    FOR v_lane IN
        SELECT l.*, head.*
        FROM (SELECT h.place, coalesce(h.start, 0) AS start, ((h.place - 1) / v_shards + 1)::smallint AS priority,
                     ((h.place - 1) % v_shards)::smallint AS shard
              FROM unnest(v_hints) WITH ORDINALITY h (start, place)) l
        CROSS JOIN LATERAL (
            SELECT two.*, count(*) OVER () > 1 AS has_more FROM (
                SELECT r.rslot, r.ctid AS at, r.pos, r.job_id, r.slot, r.run_lease, r.attempt, r.ready_at FROM awa_queue.ready r
                WHERE r.rslot BETWEEN v_low AND v_high AND r.queue = p_queue AND r.priority = l.priority AND r.shard = l.shard
                  AND r.pos >= l.start
                ORDER BY r.pos LIMIT 2) two LIMIT 1) head
        ORDER BY CASE WHEN p_aging > 0
                      THEN greatest(1, l.priority - floor(extract(epoch FROM v_now - head.ready_at)::float8 / p_aging))
                      ELSE l.priority END, head.ready_at, l.priority
    LOOP
        v_looked := coalesce(v_looked, clock_timestamp() - v_began);
        v_from := v_lane.start;
        v_size := NULL;
        LOOP
            BEGIN
                IF v_lane.has_more THEN
                    IF v_size IS NULL THEN
                        SELECT octet_length(b.args::text) INTO v_size FROM awa_queue.bodies b
                        WHERE b.slot = v_lane.slot AND b.job_id = v_lane.job_id;
                    END IF;
                    -- Not many more than will fit: each is unpacked before it is known to.
                    v_large := v_large OR v_size > 10000;
                    v_n := least(v_left, v_bytes / greatest(v_size, 1) + 1);
                    v_got := awa_queue.take_lane(p_queue, v_lane.priority, v_lane.shard, v_from, v_n, v_bytes, p_instance, p_deadline_ms,
                        v_lslot, v_low, v_high, NOT v_large);
                ELSE
                    v_n := 2; -- one is fewer: that was all
                    v_got := awa_queue.take_one(v_lane.rslot, v_lane.at, v_lane.priority, v_lane.pos, v_lane.job_id, v_lane.slot,
                        v_lane.run_lease, v_lane.attempt, p_instance, p_deadline_ms, v_lslot);
                END IF;
            EXCEPTION WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS v_state = RETURNED_SQLSTATE;
                IF NOT awa_queue.is_row_fault(v_state) THEN
                    RAISE;
                END IF;
                v_got := awa_queue.take_carefully(p_queue, v_lane.priority, v_lane.shard, v_from, least(v_n, 64), v_bytes, p_instance,
                    p_deadline_ms, v_lslot);
            END;
            EXIT WHEN v_got.job_ids IS NULL;
            v_all := CASE WHEN v_all.job_ids IS NULL THEN v_got ELSE awa_queue.joined(v_all, v_got) END;
            v_size := coalesce(v_got.hints[2], 0);
            v_left := v_left - cardinality(v_got.job_ids);
            v_bytes := v_bytes - v_size;
            v_from := v_got.hints[1];
            EXIT WHEN cardinality(v_got.job_ids) < v_n OR v_left <= 0 OR v_bytes <= 0;
            v_size := v_size / v_n;
        END LOOP;
        v_hints[v_lane.place] := v_from;
        EXIT WHEN v_left <= 0 OR v_bytes <= 0;
    END LOOP;
    v_all.hints := v_hints;
    v_all.looked_ms := 1000 * extract(epoch FROM coalesce(v_looked, clock_timestamp() - v_began));
    -- Every step copies what it hands on: large texts are read at the end, when all that is left is to send them.
    IF v_large THEN
        SELECT array_agg(coalesce(b.text, '') ORDER BY t.place), count(b.text) INTO v_all.args, v_n
        FROM unnest(v_all.lslots, v_all.job_ids) WITH ORDINALITY AS t (lslot, job_id, place)
        LEFT JOIN LATERAL (SELECT x.args::text AS text FROM awa_queue.leases l JOIN awa_queue.bodies x ON x.slot = l.slot AND x.job_id = l.job_id
                           WHERE l.lslot = t.lslot AND l.job_id = t.job_id OFFSET 0) b ON true;
        IF v_n < cardinality(array_remove(v_all.kinds, NULL)) THEN
            RAISE EXCEPTION 'a claimed job has no visible body' USING ERRCODE = 'AWA01';
        END IF;
    END IF;
    RETURN v_all;
END $$;

CREATE FUNCTION awa_queue.joined(a awa_queue.claim_batch, b awa_queue.claim_batch) RETURNS awa_queue.claim_batch LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog AS $$
    SELECT ROW(a.job_ids || b.job_ids, a.run_leases || b.run_leases, a.lslots || b.lslots, a.attempts || b.attempts,
               a.max_attempts || b.max_attempts, a.priorities || b.priorities, a.kinds || b.kinds, a.args || b.args,
               a.created_at || b.created_at, a.run_at || b.run_at, a.deadline_at || b.deadline_at, a.extras || b.extras,
               b.hints, greatest(a.claimed_at, b.claimed_at), b.looked_ms)::awa_queue.claim_batch
$$;

-- One row at a time, each in its own subtransaction: what cannot be claimed is recorded as failed, the rest is claimed.
CREATE FUNCTION awa_queue.take_carefully(
    p_queue text, p_priority smallint, p_shard smallint, p_from bigint, p_n integer, p_bytes bigint, p_instance uuid,
    p_deadline_ms bigint, p_lslot smallint
) RETURNS awa_queue.claim_batch LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_bytes bigint := p_bytes;
    v_head  record;
    v_got   awa_queue.claim_batch;
    v_all   awa_queue.claim_batch;
    v_error text;
    v_state text;
BEGIN
    FOR v_head IN
        SELECT r AS found, r.ctid AS at, r.* FROM awa_queue.ready r
        WHERE r.queue = p_queue AND r.priority = p_priority AND r.shard = p_shard AND r.pos >= p_from
        ORDER BY r.pos LIMIT p_n FOR UPDATE SKIP LOCKED
    LOOP
        BEGIN
            v_got := awa_queue.take_one(v_head.rslot, v_head.at, p_priority, v_head.pos, v_head.job_id, v_head.slot, v_head.run_lease,
                v_head.attempt, p_instance, p_deadline_ms, p_lslot);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE;
            IF NOT awa_queue.is_row_fault(v_state) THEN
                RAISE;
            END IF;
            PERFORM awa_queue.fail_unclaimable(v_head.found, v_error);
            CONTINUE;
        END;
        CONTINUE WHEN v_got.job_ids IS NULL;
        v_all := CASE WHEN v_all.job_ids IS NULL THEN v_got ELSE awa_queue.joined(v_all, v_got) END;
        p_bytes := p_bytes - v_got.hints[2];
        v_all.hints := ARRAY[v_got.hints[1], v_bytes - p_bytes];
        EXIT WHEN p_bytes <= 0;
    END LOOP;
    RETURN v_all;
END $$;

-- The claim of a client that may stop reading at any moment: it commits before the first byte is sent, so a frozen client
-- holds a lease (which maintenance takes back) and never an open transaction.
CREATE PROCEDURE awa_queue.claim(
    p_queue text, p_n integer, p_bytes bigint, p_instance uuid, p_aging float8, p_deadline_ms bigint, p_hints bigint[],
    OUT job_ids bigint[], OUT run_leases bigint[], OUT lslots smallint[], OUT attempts smallint[], OUT max_attempts smallint[],
    OUT priorities smallint[], OUT kinds text[], OUT args text[], OUT created_at timestamptz[], OUT run_at timestamptz[],
    OUT deadline_at timestamptz[], OUT extras text[], OUT hints bigint[], OUT claimed_at timestamptz, OUT looked_ms float8
) LANGUAGE plpgsql AS $$
DECLARE v awa_queue.claim_batch;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        COMMIT;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    END IF;
    v := awa_queue.take(p_queue, p_n, p_bytes, p_instance, p_aging, p_deadline_ms, p_hints);
    COMMIT;
    job_ids := v.job_ids; run_leases := v.run_leases; lslots := v.lslots; attempts := v.attempts; max_attempts := v.max_attempts;
    priorities := v.priorities; kinds := v.kinds; args := v.args; created_at := v.created_at; run_at := v.run_at;
    deadline_at := v.deadline_at; extras := v.extras; hints := v.hints; claimed_at := v.claimed_at; looked_ms := v.looked_ms;
END $$;

-- Complete live attempts, guarded by (job_id, run_lease, instance). Gives the ids that were completed; the rest are stale.
-- p_lslots is where each lease was put. A carry moves a lease by delete and insert, so a statement can miss one that lives: what
-- is missing is looked for in every slot, in new statements, until a look finds nothing of it. The ids are an index condition and no
-- join: a join is planned by what statistics say of leases, and those that were analysed while nothing ran say one row.
CREATE FUNCTION awa_queue.complete(
    p_jobs bigint[], p_leases bigint[], p_lslots smallint[], p_instance uuid, p_results text[] DEFAULT NULL,
    OUT completed bigint[], OUT at timestamptz
) LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_again bigint[];
    v_freed bigint[];
    v_more  bigint[];
    v_low   smallint;
    v_high  smallint;
BEGIN
    at := clock_timestamp();
    SELECT min(s), max(s) INTO v_low, v_high FROM unnest(p_lslots) s;
    WITH deleted AS (
        DELETE FROM awa_queue.leases l
        WHERE l.lslot BETWEEN v_low AND v_high AND l.job_id = ANY (p_jobs)
          AND l.run_lease = p_leases[array_position(p_jobs, l.job_id)] AND l.instance = p_instance
        RETURNING l.slot, l.attempt, l.job_id, l.run_lease, l.claimed_at, l.frees_claim
    ), recorded AS (
        INSERT INTO awa_queue.done (slot, attempt, instance_number, job_id, run_lease, claimed_at, finalized_at, result)
        SELECT d.slot, d.attempt, (SELECT i.number FROM awa.instances i WHERE i.id = p_instance), d.job_id, d.run_lease, d.claimed_at, at,
               CASE WHEN p_results IS NOT NULL THEN p_results[array_position(p_jobs, d.job_id)]::jsonb END FROM deleted d
    )
    SELECT array_agg(d.job_id), array_agg(d.job_id) FILTER (WHERE d.frees_claim) INTO completed, v_freed FROM deleted d;
    IF coalesce(cardinality(completed), 0) < cardinality(p_jobs) THEN
        completed := completed || awa.complete_canonical(p_jobs, p_leases, p_instance, p_results, at);
    END IF;
    WHILE coalesce(cardinality(completed), 0) < cardinality(p_jobs) LOOP
        WITH deleted AS (
            DELETE FROM awa_queue.leases l
            WHERE l.job_id = ANY (p_jobs) AND NOT l.job_id = ANY (coalesce(completed, '{}'))
              AND l.run_lease = p_leases[array_position(p_jobs, l.job_id)] AND l.instance = p_instance
            RETURNING l.slot, l.attempt, l.job_id, l.run_lease, l.claimed_at, l.frees_claim
        ), recorded AS (
            INSERT INTO awa_queue.done (slot, attempt, instance_number, job_id, run_lease, claimed_at, finalized_at, result)
            SELECT d.slot, d.attempt, (SELECT i.number FROM awa.instances i WHERE i.id = p_instance), d.job_id, d.run_lease, d.claimed_at, at,
                   CASE WHEN p_results IS NOT NULL THEN p_results[array_position(p_jobs, d.job_id)]::jsonb END FROM deleted d
        )
        SELECT array_agg(d.job_id), array_agg(d.job_id) FILTER (WHERE d.frees_claim) INTO v_again, v_more FROM deleted d;
        completed := completed || v_again;
        v_freed := v_freed || v_more;
        EXIT WHEN NOT EXISTS (
            SELECT FROM unnest(p_jobs, p_leases) AS i (job_id, run_lease)
            CROSS JOIN LATERAL (SELECT FROM awa_queue.leases l WHERE l.job_id = i.job_id AND l.run_lease = i.run_lease
                                AND l.instance = p_instance LIMIT 1) l
            WHERE NOT i.job_id = ANY (coalesce(completed, '{}')));
    END LOOP;
    IF v_freed IS NOT NULL THEN
        PERFORM awa_queue.shift_completed(v_freed);
    END IF;
END $$;

-- Unique keys that change hands with completion: given back, or, by a mask with `completed` but without `running`, taken again
-- where nobody else has taken it. Its work is done: a job completes with or without its key.
CREATE FUNCTION awa_queue.shift_completed(p_jobs bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_job bigint;
    v_key bytea;
BEGIN
    DELETE FROM awa.job_unique_claims c USING unnest(p_jobs) AS f (job_id)
    CROSS JOIN LATERAL (SELECT b.unique_key, b.unique_states FROM awa_queue.done d
                        JOIN awa_queue.bodies b ON b.slot = d.slot AND b.job_id = d.job_id WHERE d.job_id = f.job_id LIMIT 1) b
    WHERE get_bit(b.unique_states, 3) = 0 AND c.unique_key = b.unique_key AND c.job_id = f.job_id;
    FOR v_job, v_key IN
        SELECT f.job_id, b.unique_key FROM unnest(p_jobs) AS f (job_id)
        CROSS JOIN LATERAL (SELECT b.unique_key, b.unique_states FROM awa_queue.done d
                            JOIN awa_queue.bodies b ON b.slot = d.slot AND b.job_id = d.job_id WHERE d.job_id = f.job_id LIMIT 1) b
        WHERE get_bit(b.unique_states, 3) = 1 ORDER BY b.unique_key
    LOOP
        PERFORM awa_queue.try_claim(v_key, v_job);
    END LOOP;
END $$;

-- Least privilege: what a role may do is decided by grants alone ('awa-actors migrate --grants'). Row security, which some
-- platforms switch on for every table, would hide all rows from granted roles without an error; so every table has a policy
-- that lets through whoever a grant lets in. It costs nothing while row security is off.

-- To be called at the end of a migration that adds tables. Creates policies only where they are missing.
CREATE FUNCTION awa.admit_granted_roles() RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    v_table regclass;
    v_count integer := 0;
BEGIN
    FOR v_table IN
        SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname IN ('awa', split_part('awa_queue.', '.', 1)) AND c.relkind IN ('r', 'p')
          AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'awa_by_grants')
        ORDER BY c.oid
    LOOP
        EXECUTE format('CREATE POLICY awa_by_grants ON %s USING (true) WITH CHECK (true)', v_table);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;
SELECT awa.admit_granted_roles();

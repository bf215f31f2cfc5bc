"""Versions of several tenants' tasks in one statement, each tenant's under its own row-level security."""

from alembic import op

revision = "0007"
down_revision = "0006"

# STABLE: all that it reads is of the calling statement's snapshot. SECURITY INVOKER (the default): the policies hold for the
# caller's role. A row with an id is a task; one without is its tenant's queue, `packed` unless the caller has that plan.
_FUNCTION = """
CREATE FUNCTION task_versions(tenants text[], ids text[], plans bigint[])
RETURNS TABLE (tenant_id varchar, id varchar, version bigint, status varchar, fence bigint, plan bigint, packed bytea)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    asked record;
BEGIN
    FOR asked IN
        SELECT one.tenant, array_agg(one.id) AS ids, max(one.plan) AS plan
        FROM unnest(tenants, ids, plans) AS one(tenant, id, plan) GROUP BY one.tenant
    LOOP
        PERFORM set_config('motet.tenant', asked.tenant, true);
        RETURN QUERY
            SELECT t.tenant_id, t.id, t.version, t.status, t.fence, NULL::bigint, NULL::bytea
            FROM tasks t WHERE t.id = ANY (asked.ids) AND t.tenant_id = asked.tenant AND t.deleted_at IS NULL;
        RETURN QUERY
            SELECT q.tenant_id, NULL::varchar, NULL::bigint, NULL::varchar, NULL::bigint, q.number,
                CASE WHEN q.number <> asked.plan THEN q.packed END
            FROM queue_status q WHERE q.tenant_id = asked.tenant;
    END LOOP;
    PERFORM set_config('motet.tenant', '', true);
END $$
"""


def upgrade() -> None:
    op.execute(_FUNCTION)


def downgrade() -> None:
    op.execute("DROP FUNCTION task_versions(text[], text[], bigint[])")

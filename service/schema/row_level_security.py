"""Row-level security: policies and grants derived from the table metadata, so that no table of tenants' rows is missed."""

import hashlib
from collections.abc import Mapping

from sqlalchemy import Connection, MetaData, Table, text

from service.schema.roles import APP, SYSTEM

_TENANT = "(SELECT current_setting('motet.tenant', true))"
# the app role's rights on tables without a tenant; on others without a tenant it has none
_SHARED: Mapping[str, str] = {
    "base_models": "SELECT, UPDATE (created_at)",  # of any column, or its rows could not be locked against removal
    **dict.fromkeys(("base_model_files", "base_copies"), "SELECT"),
    **dict.fromkeys(("gpu_prices", "usage_rolled_up_through"), "SELECT"),
    "nodes": "SELECT, UPDATE (desired_version)",
    "plan_requests": "SELECT, INSERT",
}
# the app role's rights on tenants' tables, where not _EVERYTHING
_NARROWER: Mapping[str, str | None] = {
    "tenants": "SELECT",
    **dict.fromkeys(("api_keys", "browser_sessions", "sign_in_links"), None),
    "answer_sessions": None,
    **dict.fromkeys(("memberships", "invitations", "service_accounts"), None),
    "audit_entries": "SELECT, INSERT",
    **dict.fromkeys(("queue_status", "task_usage", "tenant_usage", "completion_usage"), "SELECT"),
    **dict.fromkeys(("daily_usage", "tenant_daily_usage", "monthly_savings"), "SELECT"),
}
_EVERYTHING = "SELECT, INSERT, UPDATE, DELETE"
_MARK = "alembic_version"  # its comment holds a hash of the applied statements


def tenant_tables(metadata: MetaData) -> dict[str, str]:
    """Every table of tenants' rows, with the SQL condition that a row belongs to the transaction's tenant."""
    found: dict[str, str] = {"tenants": f"id = {_TENANT}"}
    for table in metadata.sorted_tables:  # referenced tables come first
        condition = _own(table) or _through(table, found)
        if condition is not None:
            found.setdefault(table.name, condition)
    return found


def steps(connection: Connection, metadata: MetaData) -> list[list[str]]:
    """The statements that set all policies and grants: one list per table, to run in its own transaction, so that each table
    is locked only for its own statements. Empty if nothing has to change."""
    found = [*_roles(), *(_of_table(table, metadata) for table in metadata.sorted_tables)]
    said = "\n".join(statement for step in found for statement in step)
    mark = "protection " + hashlib.sha256(said.encode()).hexdigest()[:16]
    if _mark_of(connection) == mark and not unprotected(connection, metadata):
        return []
    return [*found, [f"COMMENT ON TABLE {_MARK} IS '{mark}'"]]


def unprotected(connection: Connection, metadata: MetaData) -> list[str]:
    """Existing tenants' tables without forced row-level security; there must be none."""
    asked = "SELECT relname FROM pg_class WHERE relkind = 'r' AND NOT (relrowsecurity AND relforcerowsecurity)"
    open_ones = set(connection.scalars(text(f"{asked} AND relnamespace = 'public'::regnamespace")))
    return sorted(open_ones & set(tenant_tables(metadata)))


def rights_of_app(table: Table, metadata: MetaData) -> str | None:
    """The app role's rights on the table, in GRANT's syntax; None for no rights."""
    if table.name in tenant_tables(metadata):
        return _NARROWER.get(table.name, _EVERYTHING)
    return _SHARED.get(table.name)


def _own(table: Table) -> str | None:
    return f"tenant_id = {_TENANT}" if "tenant_id" in table.columns else None


def _through(table: Table, found: Mapping[str, str]) -> str | None:
    for key in sorted(table.foreign_keys, key=lambda key: key.parent.name):
        if key.column.table.name in found and not key.parent.nullable:
            parent, column = key.column.table.name, key.column.name
            return f"EXISTS (SELECT FROM {parent} owner WHERE owner.{column} = {table.name}.{key.parent.name})"
    return None


def _roles() -> list[list[str]]:
    rights = ("USAGE ON SCHEMA public", f"SELECT ON {_MARK}", "USAGE ON ALL SEQUENCES IN SCHEMA public")
    return [[f"GRANT {right} TO {APP}, {SYSTEM}" for right in rights]]


def _of_table(table: Table, metadata: MetaData) -> list[str]:
    name, owned, rights = table.name, tenant_tables(metadata), rights_of_app(table, metadata)
    found = [f"REVOKE ALL ON {name} FROM PUBLIC, {APP}, {SYSTEM}", f"GRANT {_EVERYTHING} ON {name} TO {SYSTEM}"]
    if rights is not None:
        found.append(f"GRANT {rights} ON {name} TO {APP}")
    if name in owned:
        condition = owned[name]
        found += [
            f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS of_tenant ON {name}",
            f"DROP POLICY IF EXISTS of_system ON {name}",
            f"CREATE POLICY of_tenant ON {name} TO {APP} USING ({condition}) WITH CHECK ({condition})",
            f"CREATE POLICY of_system ON {name} TO {SYSTEM} USING (true) WITH CHECK (true)",
        ]
    return found


def _mark_of(connection: Connection) -> str | None:
    return connection.scalar(text(f"SELECT obj_description('{_MARK}'::regclass)"))

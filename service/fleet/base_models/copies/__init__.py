"""Copies of bases in storage: brought from the hub in the background, or uploaded by an admin.

Enters: a base with its files by sha256, or an admin's bytes. Leaves: objects, and a row that says whether nodes fetch from
storage. It must not know nodes, tenants, nor placements."""

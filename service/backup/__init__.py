"""Backups of a deployment: database and objects as of one moment, verified by sha256 and by the rows of each table; and back.

Enters: the database's owner, the storage, where backups lie. Leaves: objects, a dump and a manifest there; or a database and a
storage made from them. Must not know requests: both run as commands.
"""

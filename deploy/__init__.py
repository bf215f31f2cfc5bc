"""Installs, starts and backs up Motet on one machine. May import every other room.

Enters: options, a state folder, environment variables. Leaves: running processes, backups, rendered manifests. No room may
know it."""

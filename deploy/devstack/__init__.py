"""The embedded stack: real Postgres and Valkey from wheels, and Motet's own programs, kept running by a supervisor.

Enters: options and a state folder. Leaves: processes, and JSON lines on stdout. It must not know what the programs do.
"""

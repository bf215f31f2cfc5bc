"""Content-addressed object storage: objects named by their sha256, and signed grants for workers' uploads.

Enters: bytes. Leaves: bytes whose hash was verified. Knows no tenants, tasks or HTTP."""

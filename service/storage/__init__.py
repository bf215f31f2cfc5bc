"""Content-addressed object storage: objects named by their sha256, signed grants for uploads, downloads, the transfer port.

Enters: bytes. Leaves: bytes whose hash was verified. Knows no tenants or tasks."""

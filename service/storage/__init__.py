"""Objects named by the sha256 of their bytes, and the signed grants by which workers upload them.

Enters: bytes. Leaves: bytes whose hash was verified. It must not know tenants, tasks or HTTP."""

"""Completions: what tenants ask a base or an adapter, from the request to the executor that answers it and back.

Enters: a request whose model is resolved. Leaves: pieces of its answer, as an executor sends them, and what it used. It must
not know the faces that translate them, nor how texts are generated."""

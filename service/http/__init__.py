"""HTTP plumbing that knows no domain: middleware, problem responses, pagination, concurrency limits, the OpenAPI document.

Enters: requests, and exceptions that domain packages raise. Leaves: responses in one shape (RFC 9457 problems, keyset pages).
Knows no tasks, files, tenants or nodes by name; domain packages import it, never the other way round."""

"""Signing in and out: cookies, forms' CSRF tokens, and who looks at a page.

Enters: a key or a one-time link. Leaves: a session cookie, and a Viewer for each page. Knows no page's content."""

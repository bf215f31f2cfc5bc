"""OpenID Connect, as a relying party: discovery, the authorization code flow with PKCE, the device flow, ID tokens verified.

Enters: the provider's answers. Leaves: an Identity. Must not know: users, tenants, cookies, pages."""

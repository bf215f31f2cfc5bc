"""People of tenants: users, their roles, invitations, service accounts, and who gets in after a sign-in.

Enters: an identity that the provider has vouched for, an owner's wishes. Leaves: memberships and keys. Must not know: OpenID
Connect's protocol, cookies, pages."""

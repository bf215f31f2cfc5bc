"""How configurations, exits, quotas and mistakes in a spec are told to people: the same words in API, pages and command
line.

Enters: configurations, exit evidence, validation errors. Leaves: short sentences and labels. It must not know who shows
them."""

"""Tables that the command line prints: resources in, what rich draws out.

Enters: values of the client. Leaves: tables. It must not know the service or commands."""

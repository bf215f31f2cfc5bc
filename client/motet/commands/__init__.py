"""How the user invokes the command line, so that suggested commands can be copied.

Enters: the process's own name. Leaves: words. It must not know any command."""

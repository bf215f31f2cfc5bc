"""How clients follow a task: answers cached by version, long polls, server-sent events, one LISTEN connection per process.

Enters: committed changes. Leaves: answers and event streams. It must not change a task."""

"""One module a page: routes that call the domain rooms and render a template.

Enters: a Viewer and the URL. Leaves: HTML. Holds no rule about tasks, only which are shown and how they are addressed."""

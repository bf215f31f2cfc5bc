"""What the `motet` command line draws and reads: spec files, tables, live views, plots of characters.

Enters: values of `motet.api`. Leaves: text on a terminal. It must not speak HTTP itself."""

"""What the command line draws: tables, live views, character plots, progress.

Enters: values of `motet.api`. Leaves: text on a terminal or plain lines. It must not speak HTTP itself.
"""

"""Installs, starts and backs up Motet on one machine. May import every other room; no room imports it."""

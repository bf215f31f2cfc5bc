"""The version of Motet that this code is: what the CHANGELOG calls it, and what stored specs name as their maker."""

VERSION = "0.2.0"

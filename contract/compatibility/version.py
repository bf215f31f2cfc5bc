"""The version of Motet: the number in the CHANGELOG, stored in each spec as the version that made it."""

VERSION = "0.2.0"

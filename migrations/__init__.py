"""The database's history, one file a step. To add one: alembic -c migrations/alembic.ini revision --autogenerate -m "why"."""

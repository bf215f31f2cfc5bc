"""What is sent between service and workers is read by somebody."""

import ast
import importlib
from pathlib import Path

import pytest
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "contract" / "messages").glob("[!_]*.py"))


@pytest.fixture(scope="module")
def attributes() -> set[str]:
    """Names of the attributes that any product module reads, or matches by a class pattern."""
    read: set[str] = set()
    for package in ("contract", "service", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    read.add(node.attr)
                elif isinstance(node, ast.MatchClass):
                    read.update(node.kwd_attrs)
    return read


@pytest.mark.parametrize("name", MODULES)
def test_every_field_of_a_message_is_read(name: str, attributes: set[str]) -> None:
    module = importlib.import_module(f"contract.messages.{name}")
    models = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    assert not {field for model in models if model.__module__ == module.__name__ for field in model.model_fields} - attributes

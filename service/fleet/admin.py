"""Base models, nodes and plans, as tenants and admins see them."""

from fastapi import APIRouter

router = APIRouter(prefix="/v1")

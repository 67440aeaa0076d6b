"""One `WHERE path = $1` a request: FastAPI and asyncpg, what a Python team writes by hand. DATABASE_URL names the database."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import FastAPI, HTTPException, Request

LOOK_UP = "SELECT path, id, name, tier FROM users WHERE path = $1"
WRITE = "INSERT INTO notes (number) VALUES ($1) RETURNING number"


@asynccontextmanager
async def pool(app: FastAPI) -> AsyncIterator[None]:
    """16 connections, as long as the server runs."""
    async with asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=16, max_size=16) as app.state.pool:
        yield


app = FastAPI(lifespan=pool)


@app.get("/q/user")
async def user(request: Request, path: str) -> dict[str, Any]:
    """The row, or 404."""
    row = await request.app.state.pool.fetchrow(LOOK_UP, path)
    if row is None:
        raise HTTPException(404)
    return dict(row)


@app.post("/q/note")
async def note(request: Request) -> dict[str, Any]:
    """Writes one number."""
    number = (await request.json())["number"]
    return dict(await request.app.state.pool.fetchrow(WRITE, number))

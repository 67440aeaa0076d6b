"""What all calls share: the tables of the moment, the databases, the recorder. One for the process; the tables are swapped in one step."""

from typing import TYPE_CHECKING

from tailrace_contract.plan import Engine
from tailrace_gateway.observe import Observer
from tailrace_gateway.serve.engine import Executor
from tailrace_gateway.serve.postgres.execute import PostgresExecutor
from tailrace_gateway.serve.recording import Recorder
from tailrace_gateway.serve.sqlite.execute import SqliteExecutor
from tailrace_gateway.serve.tables import Tables

if TYPE_CHECKING:
    from tailrace_gateway.serve.mysql.execute import MysqlExecutor


class Serving:
    """A call takes `tables` once, at its beginning, and ends with those."""

    def __init__(self, recorder: Recorder, observe: Observer, executors: dict[Engine, Executor] | None = None) -> None:
        self.recorder = recorder
        self.observe = observe
        self.tables: Tables | None = None
        self._postgres = PostgresExecutor(observe)
        self._sqlite = SqliteExecutor()
        self._mysql: MysqlExecutor | None = None
        self._executors: dict[Engine, Executor] = executors or {Engine.POSTGRES: self._postgres, Engine.SQLITE: self._sqlite}

    def swap(self, tables: Tables) -> None:
        """Serves these from the next call on; connections that they no longer have are closed once idle."""
        self.tables = tables
        self._postgres.retain(tables.snapshot.connections)
        self._sqlite.retain(tables.snapshot.connections)
        if self._mysql is not None:
            self._mysql.retain(tables.snapshot.connections)

    def executor(self, engine: Engine) -> Executor:
        """Of a connection. MySQL's driver is loaded when the first call needs it."""
        if engine is Engine.MYSQL and engine not in self._executors:
            from tailrace_gateway.serve.mysql.execute import MysqlExecutor

            self._mysql = self._executors[engine] = MysqlExecutor(self.observe)
        return self._executors[engine]

    async def close(self) -> None:
        """Closes the databases."""
        await self._postgres.close()
        await self._sqlite.close()
        if self._mysql is not None:
            await self._mysql.close()

"""The compiler's own connection to MySQL or MariaDB: it prepares statements and reads the catalog; of saved queries it runs at most a LIMIT 0.

Rejects what can't be reached (`UnreachableError`), what the server does not accept (`ServerError`). IO: one read-only connection.
"""

import time
from collections.abc import Sequence

from tailrace_contract.plan import MysqlPlace, StatementPlan
from tailrace_contract.uri_parts import Files

from tailrace_gateway.compile.postgres.session import ServerError, UnreachableError
from tailrace_gateway.serve.mysql import connect
from tailrace_gateway.serve.mysql.wire import Column

ASK_S = 10.0
"""Of each question; a server that is slower counts as unreachable."""
_SAMPLES = {
    MysqlPlace.BOOLEAN: b"1",
    MysqlPlace.DOUBLE: b"1",
    MysqlPlace.INTEGER: b"1",
    MysqlPlace.DECIMAL: b"1",
    MysqlPlace.DATE: b"2000-01-01",
    MysqlPlace.TIME: b"00:00:00",
    MysqlPlace.TIMESTAMP: b"2000-01-01 00:00:00",
}


class Session:
    """One connection. Not thread-safe."""

    def __init__(self, url: str, session: Sequence[tuple[str, str]], files: Files) -> None:
        until_s = time.monotonic() + ASK_S
        try:
            self._connection = connect.Connection(url, files, until_s)
        except (connect.ConnectionLost, OSError) as error:
            raise UnreachableError("the server cannot be reached") from error
        try:
            self._connection.pin(session, round(ASK_S * 1000), until_s)
        except connect.ServerError as error:
            self.close()
            raise ServerError(error.sqlstate, error.text) from None
        except (connect.ConnectionLost, connect.DeadlinePassed) as error:
            self.close()
            raise UnreachableError("the server cannot be used") from error

    @property
    def is_mariadb(self) -> bool:
        """Else MySQL."""
        return self._connection.is_mariadb

    @property
    def version(self) -> str:
        """As the server says it."""
        return self._connection.version

    def close(self) -> None:
        """Ends it."""
        self._connection.quit()

    def rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """Runs one statement of ours."""
        try:
            return self._connection.query(sql, time.monotonic() + ASK_S)
        except connect.ServerError as error:
            raise ServerError(error.sqlstate, error.text) from None
        except (connect.ConnectionLost, connect.DeadlinePassed) as error:
            raise UnreachableError("the server is gone") from error

    def objection(self, sql: str) -> int:
        """The number of the error that preparing a statement gives, 0 for none."""
        until_s = time.monotonic() + ASK_S
        try:
            self._connection.forget(self._connection.prepare(sql, until_s))
        except connect.ServerError as error:
            return error.number
        except (connect.ConnectionLost, connect.DeadlinePassed) as error:
            raise UnreachableError("the server is gone") from error
        return 0

    def prepare(self, sql: str, places: int, *, write: bool = False) -> tuple[Column, ...]:
        """What the server describes; nothing runs. A write is prepared in a transaction that may write, which is rolled back."""
        until_s = time.monotonic() + ASK_S
        try:
            if write:
                self._connection.query("START TRANSACTION READ WRITE", until_s)
            try:
                prepared = self._connection.prepare(sql, until_s)
                self._connection.forget(prepared)
            finally:
                if write:
                    self._connection.query("ROLLBACK", until_s)
        except connect.ServerError as error:
            raise ServerError(error.sqlstate, error.text) from None
        except (connect.ConnectionLost, connect.DeadlinePassed) as error:
            raise UnreachableError("the server is gone") from error
        if prepared.places != places:
            raise ServerError("HY000", "the server counts other parameters than the text")
        return prepared.columns

    def explained(self, sql: str, places: Sequence[int], values: Sequence[bytes | None]) -> list[dict[str, str | None]]:
        """The rows of EXPLAIN, by column name; nothing runs but what the planner looks up."""
        until_s = time.monotonic() + ASK_S
        try:
            prepared = self._connection.prepare(f"EXPLAIN {sql}", until_s)
            result = self._connection.execute(prepared, StatementPlan(sql=sql, oids=tuple(places)), values, until_s)
            names = [column.name for column in result.columns]
            rows = [row for row, _ in self._connection.rows(result.columns, until_s)]
            self._connection.forget(prepared)
        except connect.ServerError as error:
            raise ServerError(error.sqlstate, error.text) from None
        except (connect.ConnectionLost, connect.DeadlinePassed) as error:
            raise UnreachableError("the server is gone") from error
        return [
            dict(zip(names, [None if value is None else value.decode("utf-8", "replace") for value in row], strict=True)) for row in rows
        ]

    def typed(self, sql: str, places: Sequence[int]) -> tuple[Column, ...]:
        """The columns of a result whose parameters have types, which a Prepare does not know: executed with samples. For what returns no rows."""
        until_s = time.monotonic() + ASK_S
        values = [_SAMPLES.get(MysqlPlace(place), b"") for place in places]
        try:
            prepared = self._connection.prepare(sql, until_s)
            result = self._connection.execute(prepared, StatementPlan(sql=sql, oids=tuple(places)), values, until_s)
            for _ in self._connection.rows(result.columns, until_s):
                pass
            self._connection.forget(prepared)
        except connect.ServerError as error:
            raise ServerError(error.sqlstate, error.text) from None
        except (connect.ConnectionLost, connect.DeadlinePassed) as error:
            raise UnreachableError("the server is gone") from error
        return result.columns

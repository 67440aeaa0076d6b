"""The six databases of cases/six.sql in a `Mariadb`: what the reference systems measured on MySQL."""

from tailrace_contract.idempotency import ddl

from tailrace_loadtest import cases
from tailrace_loadtest.servers.mariadb import Mariadb


def load(server: Mariadb, thousands: int = 1) -> str:
    """Makes them for so many thousand customers; returns the URL of a user who may read all six and write payments."""
    server.sql(cases.path("six.sql").read_text().replace("{thousands}", str(thousands)))
    server.sql(ddl("billing.tailrace_idempotency", "mysql"))
    return server.url("crm", "six", "six")

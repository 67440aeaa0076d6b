"""Every error code a caller can get, with its HTTP status, title and fixed detail (RFC 9457).

A detail never carries a value, a host name or SQL: both languages write exactly this text. The Rust enum
(`dataplane-rs/src/http/codes.rs`) and the table in `docs/errors.md` are generated from here.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Code:
    """One stable code.

    `retry_after_s`: whole seconds of the Retry-After header, None for no header.
    """

    name: str
    status: int
    title: str
    detail: str
    retry_after_s: int | None = None


CODES: tuple[Code, ...] = (
    Code("malformed_request", 400, "Malformed request", "The request is not well-formed."),
    Code("malformed_body", 400, "Malformed body", "The request body is not a JSON object."),
    Code("malformed_arguments", 400, "Malformed arguments", "The URL arguments are not valid percent-encoded UTF-8."),
    Code(
        "invalid_cursor",
        400,
        "Invalid cursor",
        "The cursor does not belong to this key and this version of the query. Start again without it.",
    ),
    Code(
        "idempotency_unavailable",
        400,
        "Idempotency unavailable",
        "The connection of this query has no idempotencyTable, so Idempotency-Key cannot be honoured.",
    ),
    Code("invalid_idempotency_key", 400, "Invalid Idempotency-Key", "Idempotency-Key must be 1 to 255 printable ASCII characters."),
    Code("unauthorized", 401, "Unauthorized", "A valid API key is required."),
    Code("forbidden", 403, "Forbidden", "This key may not call this query."),
    Code("query_not_found", 404, "Query not found", "There is no such query."),
    Code("row_not_found", 404, "Row not found", "No row matches these parameters."),
    Code("not_found", 404, "Not found", "There is nothing at this path."),
    Code("method_not_allowed", 405, "Method not allowed", "This method is not allowed here."),
    Code("not_acceptable", 406, "Not acceptable", "None of the accepted formats can be produced."),
    Code("constraint_violation", 409, "Constraint violation", "The write was refused by a constraint of the database."),
    Code("idempotency_in_progress", 409, "Still running", "A call with this Idempotency-Key is still running.", 1),
    Code("body_too_large", 413, "Body too large", "The request body exceeds the limit."),
    Code("unsupported_media_type", 415, "Unsupported media type", "The request body must be application/json."),
    Code("invalid_parameters", 422, "Invalid parameters", "At least one parameter is not acceptable."),
    Code("bound_parameter", 422, "Bound parameter", "A parameter that the key fixes was sent."),
    Code("bulk_size", 422, "Bulk size", "A body with several calls holds 1 to 256 of them."),
    Code("bulk_unsupported", 422, "Bulk unsupported", "Several calls in one body are for reads only, and without URL arguments."),
    Code("answer_too_large", 422, "Answer too large", "This answer is too large to be one of several. Ask this call alone."),
    Code("idempotency_mismatch", 422, "Idempotency-Key reused", "This Idempotency-Key was used with other arguments."),
    Code("client_closed", 499, "Client closed the request", "The client left before the answer."),
    Code("internal_error", 500, "Internal error", "The gateway failed. The run id identifies the call."),
    Code("database_error", 502, "Database error", "The database could not answer this query."),
    Code("bad_gateway", 502, "Bad gateway", "The part that serves this path did not answer.", 1),
    Code("overloaded", 503, "Overloaded", "Too many calls are waiting.", 1),
    Code("pool_full", 503, "Pool full", "All connections for this query are in use.", 1),
    Code("draining", 503, "Draining", "This instance is shutting down.", 1),
    Code("database_unavailable", 503, "Database unavailable", "The database cannot be reached.", 1),
    Code("not_ready", 503, "Not ready", "No plans have been loaded yet.", 1),
    Code("plan_stale", 503, "Plan stale", "The tables behind this query changed; it is being recompiled.", 1),
    Code("query_refused", 503, "Query refused", "This query did not pass the checks and is not served."),
    Code("spool_full", 503, "Run spool full", "Runs cannot be recorded, so calls are refused.", 5),
    Code("query_timeout", 504, "Query timeout", "The query took longer than its timeout."),
)


class Fault(StrEnum):
    """Why one parameter was refused: `code` of an entry in `errors[]`."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    DUPLICATE = "duplicate"
    BOUND = "bound"
    NULL = "null"
    TYPE = "type"
    ENUM = "enum"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    MIN_LENGTH = "minLength"
    MAX_LENGTH = "maxLength"
    PATTERN = "pattern"


FAULT_DETAILS: dict[Fault, str] = {
    Fault.MISSING: "is required",
    Fault.UNKNOWN: "is not a parameter of this query",
    Fault.DUPLICATE: "is given more than once",
    Fault.BOUND: "is fixed by the key",
    Fault.NULL: "may not be null",
    Fault.TYPE: "has the wrong type",
    Fault.ENUM: "is not one of the allowed values",
    Fault.MINIMUM: "is below the minimum",
    Fault.MAXIMUM: "is above the maximum",
    Fault.MIN_LENGTH: "is too short",
    Fault.MAX_LENGTH: "is too long",
    Fault.PATTERN: "does not match the pattern",
}

BY_NAME: dict[str, Code] = {code.name: code for code in CODES}
"""Look-up by name."""


class Refusal(StrEnum):
    """Why a unit (query, role or key) has no plan. In status, `check` and `explain`; callers see `query_refused`."""

    NOT_PARSED = "not_parsed"
    NOT_READ_ONLY = "not_read_only"
    SEVERAL_STATEMENTS = "several_statements"
    FUNCTION_NOT_ALLOWED = "function_not_allowed"
    TABLE_NOT_ALLOWED = "table_not_allowed"
    MASK_LEAK = "mask_leak"
    UNDECLARED_PLACEHOLDER = "undeclared_placeholder"
    UNUSED_PARAMETER = "unused_parameter"
    DUPLICATE_COLUMN = "duplicate_column"
    UNNAMED_COLUMN = "unnamed_column"
    PAGE_KEY = "page_key"
    DATABASE_REFUSED = "database_refused"
    DATABASE_UNREACHABLE = "database_unreachable"
    UNSUPPORTED_ENGINE = "unsupported_engine"
    MISSING_SECRET = "missing_secret"
    INVALID_URL = "invalid_url"
    INVALID_KEY = "invalid_key"
    UNKNOWN_MASK = "unknown_mask"
    INVALID_PARAMETER = "invalid_parameter"
    DUPLICATE_NAME = "duplicate_name"

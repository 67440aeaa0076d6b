//! Generated from tailrace_contract.codes by `make generate`. Do not edit.

/// A stable error code of the API (docs/errors.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The request is not well-formed.
    MalformedRequest,
    /// The request body is not a JSON object.
    MalformedBody,
    /// The URL arguments are not valid percent-encoded UTF-8.
    MalformedArguments,
    /// The cursor does not belong to this key and this version of the query. Start again without it.
    InvalidCursor,
    /// The connection of this query has no idempotencyTable, so Idempotency-Key cannot be honoured.
    IdempotencyUnavailable,
    /// Idempotency-Key must be 1 to 255 printable ASCII characters.
    InvalidIdempotencyKey,
    /// A valid API key is required.
    Unauthorized,
    /// This key may not call this query.
    Forbidden,
    /// There is no such query.
    QueryNotFound,
    /// No row matches these parameters.
    RowNotFound,
    /// There is nothing at this path.
    NotFound,
    /// This method is not allowed here.
    MethodNotAllowed,
    /// None of the accepted formats can be produced.
    NotAcceptable,
    /// The write was refused by a constraint of the database.
    ConstraintViolation,
    /// A call with this Idempotency-Key is still running.
    IdempotencyInProgress,
    /// The request body exceeds the limit.
    BodyTooLarge,
    /// The request body must be application/json.
    UnsupportedMediaType,
    /// At least one parameter is not acceptable.
    InvalidParameters,
    /// A parameter that the key fixes was sent.
    BoundParameter,
    /// A body with several calls holds 1 to 256 of them.
    BulkSize,
    /// Several calls in one body are for reads only, and without URL arguments.
    BulkUnsupported,
    /// This answer is too large to be one of several. Ask this call alone.
    AnswerTooLarge,
    /// This Idempotency-Key was used with other arguments.
    IdempotencyMismatch,
    /// The client left before the answer.
    ClientClosed,
    /// The gateway failed. The run id identifies the call.
    InternalError,
    /// The database could not answer this query.
    DatabaseError,
    /// The part that serves this path did not answer.
    BadGateway,
    /// Too many calls are waiting.
    Overloaded,
    /// All connections for this query are in use.
    PoolFull,
    /// This instance is shutting down.
    Draining,
    /// The database cannot be reached.
    DatabaseUnavailable,
    /// No plans have been loaded yet.
    NotReady,
    /// The tables behind this query changed; it is being recompiled.
    PlanStale,
    /// This query did not pass the checks and is not served.
    QueryRefused,
    /// Runs cannot be recorded, so calls are refused.
    SpoolFull,
    /// The query took longer than its timeout.
    QueryTimeout,
}

impl Code {
    /// Every code, in the order of the contract.
    pub const ALL: [Self; 36] = [Self::MalformedRequest, Self::MalformedBody, Self::MalformedArguments, Self::InvalidCursor, Self::IdempotencyUnavailable, Self::InvalidIdempotencyKey, Self::Unauthorized, Self::Forbidden, Self::QueryNotFound, Self::RowNotFound, Self::NotFound, Self::MethodNotAllowed, Self::NotAcceptable, Self::ConstraintViolation, Self::IdempotencyInProgress, Self::BodyTooLarge, Self::UnsupportedMediaType, Self::InvalidParameters, Self::BoundParameter, Self::BulkSize, Self::BulkUnsupported, Self::AnswerTooLarge, Self::IdempotencyMismatch, Self::ClientClosed, Self::InternalError, Self::DatabaseError, Self::BadGateway, Self::Overloaded, Self::PoolFull, Self::Draining, Self::DatabaseUnavailable, Self::NotReady, Self::PlanStale, Self::QueryRefused, Self::SpoolFull, Self::QueryTimeout];

    /// The code's stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MalformedRequest => "malformed_request",
            Self::MalformedBody => "malformed_body",
            Self::MalformedArguments => "malformed_arguments",
            Self::InvalidCursor => "invalid_cursor",
            Self::IdempotencyUnavailable => "idempotency_unavailable",
            Self::InvalidIdempotencyKey => "invalid_idempotency_key",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::QueryNotFound => "query_not_found",
            Self::RowNotFound => "row_not_found",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NotAcceptable => "not_acceptable",
            Self::ConstraintViolation => "constraint_violation",
            Self::IdempotencyInProgress => "idempotency_in_progress",
            Self::BodyTooLarge => "body_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::InvalidParameters => "invalid_parameters",
            Self::BoundParameter => "bound_parameter",
            Self::BulkSize => "bulk_size",
            Self::BulkUnsupported => "bulk_unsupported",
            Self::AnswerTooLarge => "answer_too_large",
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::ClientClosed => "client_closed",
            Self::InternalError => "internal_error",
            Self::DatabaseError => "database_error",
            Self::BadGateway => "bad_gateway",
            Self::Overloaded => "overloaded",
            Self::PoolFull => "pool_full",
            Self::Draining => "draining",
            Self::DatabaseUnavailable => "database_unavailable",
            Self::NotReady => "not_ready",
            Self::PlanStale => "plan_stale",
            Self::QueryRefused => "query_refused",
            Self::SpoolFull => "spool_full",
            Self::QueryTimeout => "query_timeout",
        }
    }

    /// HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::MalformedRequest => 400,
            Self::MalformedBody => 400,
            Self::MalformedArguments => 400,
            Self::InvalidCursor => 400,
            Self::IdempotencyUnavailable => 400,
            Self::InvalidIdempotencyKey => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::QueryNotFound => 404,
            Self::RowNotFound => 404,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::ConstraintViolation => 409,
            Self::IdempotencyInProgress => 409,
            Self::BodyTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::InvalidParameters => 422,
            Self::BoundParameter => 422,
            Self::BulkSize => 422,
            Self::BulkUnsupported => 422,
            Self::AnswerTooLarge => 422,
            Self::IdempotencyMismatch => 422,
            Self::ClientClosed => 499,
            Self::InternalError => 500,
            Self::DatabaseError => 502,
            Self::BadGateway => 502,
            Self::Overloaded => 503,
            Self::PoolFull => 503,
            Self::Draining => 503,
            Self::DatabaseUnavailable => 503,
            Self::NotReady => 503,
            Self::PlanStale => 503,
            Self::QueryRefused => 503,
            Self::SpoolFull => 503,
            Self::QueryTimeout => 504,
        }
    }

    /// `title` of the problem.
    pub const fn title(self) -> &'static str {
        match self {
            Self::MalformedRequest => "Malformed request",
            Self::MalformedBody => "Malformed body",
            Self::MalformedArguments => "Malformed arguments",
            Self::InvalidCursor => "Invalid cursor",
            Self::IdempotencyUnavailable => "Idempotency unavailable",
            Self::InvalidIdempotencyKey => "Invalid Idempotency-Key",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::QueryNotFound => "Query not found",
            Self::RowNotFound => "Row not found",
            Self::NotFound => "Not found",
            Self::MethodNotAllowed => "Method not allowed",
            Self::NotAcceptable => "Not acceptable",
            Self::ConstraintViolation => "Constraint violation",
            Self::IdempotencyInProgress => "Still running",
            Self::BodyTooLarge => "Body too large",
            Self::UnsupportedMediaType => "Unsupported media type",
            Self::InvalidParameters => "Invalid parameters",
            Self::BoundParameter => "Bound parameter",
            Self::BulkSize => "Bulk size",
            Self::BulkUnsupported => "Bulk unsupported",
            Self::AnswerTooLarge => "Answer too large",
            Self::IdempotencyMismatch => "Idempotency-Key reused",
            Self::ClientClosed => "Client closed the request",
            Self::InternalError => "Internal error",
            Self::DatabaseError => "Database error",
            Self::BadGateway => "Bad gateway",
            Self::Overloaded => "Overloaded",
            Self::PoolFull => "Pool full",
            Self::Draining => "Draining",
            Self::DatabaseUnavailable => "Database unavailable",
            Self::NotReady => "Not ready",
            Self::PlanStale => "Plan stale",
            Self::QueryRefused => "Query refused",
            Self::SpoolFull => "Run spool full",
            Self::QueryTimeout => "Query timeout",
        }
    }

    /// `detail` of the problem.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::MalformedRequest => "The request is not well-formed.",
            Self::MalformedBody => "The request body is not a JSON object.",
            Self::MalformedArguments => "The URL arguments are not valid percent-encoded UTF-8.",
            Self::InvalidCursor => "The cursor does not belong to this key and this version of the query. Start again without it.",
            Self::IdempotencyUnavailable => "The connection of this query has no idempotencyTable, so Idempotency-Key cannot be honoured.",
            Self::InvalidIdempotencyKey => "Idempotency-Key must be 1 to 255 printable ASCII characters.",
            Self::Unauthorized => "A valid API key is required.",
            Self::Forbidden => "This key may not call this query.",
            Self::QueryNotFound => "There is no such query.",
            Self::RowNotFound => "No row matches these parameters.",
            Self::NotFound => "There is nothing at this path.",
            Self::MethodNotAllowed => "This method is not allowed here.",
            Self::NotAcceptable => "None of the accepted formats can be produced.",
            Self::ConstraintViolation => "The write was refused by a constraint of the database.",
            Self::IdempotencyInProgress => "A call with this Idempotency-Key is still running.",
            Self::BodyTooLarge => "The request body exceeds the limit.",
            Self::UnsupportedMediaType => "The request body must be application/json.",
            Self::InvalidParameters => "At least one parameter is not acceptable.",
            Self::BoundParameter => "A parameter that the key fixes was sent.",
            Self::BulkSize => "A body with several calls holds 1 to 256 of them.",
            Self::BulkUnsupported => "Several calls in one body are for reads only, and without URL arguments.",
            Self::AnswerTooLarge => "This answer is too large to be one of several. Ask this call alone.",
            Self::IdempotencyMismatch => "This Idempotency-Key was used with other arguments.",
            Self::ClientClosed => "The client left before the answer.",
            Self::InternalError => "The gateway failed. The run id identifies the call.",
            Self::DatabaseError => "The database could not answer this query.",
            Self::BadGateway => "The part that serves this path did not answer.",
            Self::Overloaded => "Too many calls are waiting.",
            Self::PoolFull => "All connections for this query are in use.",
            Self::Draining => "This instance is shutting down.",
            Self::DatabaseUnavailable => "The database cannot be reached.",
            Self::NotReady => "No plans have been loaded yet.",
            Self::PlanStale => "The tables behind this query changed; it is being recompiled.",
            Self::QueryRefused => "This query did not pass the checks and is not served.",
            Self::SpoolFull => "Runs cannot be recorded, so calls are refused.",
            Self::QueryTimeout => "The query took longer than its timeout.",
        }
    }

    /// Whole seconds of Retry-After.
    pub const fn retry_after_s(self) -> Option<u32> {
        match self {
            Self::MalformedRequest => None,
            Self::MalformedBody => None,
            Self::MalformedArguments => None,
            Self::InvalidCursor => None,
            Self::IdempotencyUnavailable => None,
            Self::InvalidIdempotencyKey => None,
            Self::Unauthorized => None,
            Self::Forbidden => None,
            Self::QueryNotFound => None,
            Self::RowNotFound => None,
            Self::NotFound => None,
            Self::MethodNotAllowed => None,
            Self::NotAcceptable => None,
            Self::ConstraintViolation => None,
            Self::IdempotencyInProgress => Some(1),
            Self::BodyTooLarge => None,
            Self::UnsupportedMediaType => None,
            Self::InvalidParameters => None,
            Self::BoundParameter => None,
            Self::BulkSize => None,
            Self::BulkUnsupported => None,
            Self::AnswerTooLarge => None,
            Self::IdempotencyMismatch => None,
            Self::ClientClosed => None,
            Self::InternalError => None,
            Self::DatabaseError => None,
            Self::BadGateway => Some(1),
            Self::Overloaded => Some(1),
            Self::PoolFull => Some(1),
            Self::Draining => Some(1),
            Self::DatabaseUnavailable => Some(1),
            Self::NotReady => Some(1),
            Self::PlanStale => Some(1),
            Self::QueryRefused => None,
            Self::SpoolFull => Some(5),
            Self::QueryTimeout => None,
        }
    }
}

/// Why one parameter was refused, in the order in which faults are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// is required
    Missing,
    /// is not a parameter of this query
    Unknown,
    /// is given more than once
    Duplicate,
    /// is fixed by the key
    Bound,
    /// may not be null
    Null,
    /// has the wrong type
    Type,
    /// is not one of the allowed values
    Enum,
    /// is below the minimum
    Minimum,
    /// is above the maximum
    Maximum,
    /// is too short
    MinLength,
    /// is too long
    MaxLength,
    /// does not match the pattern
    Pattern,
}

impl Fault {
    /// `errors[].code`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::Duplicate => "duplicate",
            Self::Bound => "bound",
            Self::Null => "null",
            Self::Type => "type",
            Self::Enum => "enum",
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
            Self::MinLength => "minLength",
            Self::MaxLength => "maxLength",
            Self::Pattern => "pattern",
        }
    }

    /// `errors[].detail`.
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Missing => "is required",
            Self::Unknown => "is not a parameter of this query",
            Self::Duplicate => "is given more than once",
            Self::Bound => "is fixed by the key",
            Self::Null => "may not be null",
            Self::Type => "has the wrong type",
            Self::Enum => "is not one of the allowed values",
            Self::Minimum => "is below the minimum",
            Self::Maximum => "is above the maximum",
            Self::MinLength => "is too short",
            Self::MaxLength => "is too long",
            Self::Pattern => "does not match the pattern",
        }
    }
}

//! HTTP: bytes → request (`head`, `body`, `negotiate`), answer → bytes (`response`, `compress`), and the connections between
//! (`output` keeps their order, `client` reads and writes one, `worker` is what the tasks
//! of one thread share, `server` runs them).
pub mod body;
pub mod bulk;
pub mod client;
pub mod compress;
pub mod forward;
pub mod head;
pub mod http2;
pub mod negotiate;
pub mod output;
pub mod response;
pub mod server;
pub mod stream;
pub mod tls;
pub mod transport;
pub mod worker;

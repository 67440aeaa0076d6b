//! The response cache of a pod: whole answers, exact bytes, by query version, mask set and arguments, for as long as `cache.ttl` says.
//!
//! A thread looks first among the answers that it has used itself (`front`: no lock), then in what all threads share (`shards`), where
//! a miss makes one call the leader whom others with the same question wait for (`flight`). `key` says what makes two calls the same,
//! `entry` is a kept answer, `tag` its ETag and what a client's `If-None-Match` says of it.
//! May reject: nothing; what cannot be kept is asked of the database. IO: none. The clock is an argument.
pub mod entry;
pub mod flight;
pub mod front;
pub mod key;
pub mod shards;
pub mod tag;

pub use entry::{Answer, Entry, LARGEST};
pub use flight::{Lead, Waited, Waiting};
pub use front::Front;
pub use key::{Identity, Key};
pub use shards::{Begun, Cache};
pub use tag::Tag;

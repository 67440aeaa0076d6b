//! Calls that no plan covers: the gateway answers them, at their place among the connection's answers.
//! IO: the gateway's Unix socket, by `http::forward`.
use super::call::Call;
use super::desk::Cost;
use crate::codes::Code;
use crate::http::head::Head;
use crate::http::server::Worker;
use std::rc::Rc;

/// A request as it came, and the call that it is recorded as.
#[derive(Debug)]
pub struct Forward {
    /// Where its answer goes; its `form` says what the client speaks.
    pub call: Box<Call>,
    /// Method.
    pub method: String,
    /// Path and arguments as they came.
    pub target: Vec<u8>,
    /// All headers, hop-by-hop ones and `X-Tailrace-*` included.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Forward {
    /// Copies what the connection's buffer holds.
    pub fn new(head: &Head<'_>, body: &[u8], call: Box<Call>) -> Self {
        let mut target = head.path.to_vec();
        if !head.arguments.is_empty() {
            target.push(b'?');
            target.extend_from_slice(head.arguments);
        }
        let headers = head.headers.iter().map(|header| (header.name.to_owned(), header.value.to_vec())).collect();
        Self { call, method: head.method_text.to_owned(), target, headers, body: body.to_vec() }
    }
}

/// Has the gateway answer.
pub async fn run(worker: Rc<Worker>, forward: Box<Forward>) {
    // Until `http::forward` is there, nobody answers.
    let ticket = forward.call.ticket;
    worker.tell(ticket, |core, output| core.desk.refuse(forward.call, Code::BadGateway, Cost::default(), output));
}

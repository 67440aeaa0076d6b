//! Several calls in one body: each is admitted as if it were alone, with an output of their own that keeps their order; when the last is
//! answered and all are recorded, the request gets them as one answer.
//! May reject: as `core` does, call by call. IO: none.
use super::call::{Call, Ticket};
use super::core::{Admitted, Items};
use super::desk::Cost;
use crate::codes::Code;
use crate::encode::problem;
use crate::http::bulk;
use crate::http::client::{Client, Way};
use crate::http::response::{self, Date, Form};
use crate::http::server::Start;
use crate::http::worker::Worker;
use slab::Slab;
use std::rc::Rc;

/// Where the answers of several calls go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The request that holds them.
    pub request: Ticket,
    /// Of its answer.
    pub form: Form,
    /// Some of their runs could not be recorded.
    pub unrecorded: bool,
}

/// Admits all calls of a body.
pub fn start(worker: &Rc<Worker>, call: Box<Call>, items: &Items) {
    let mut started = Vec::new();
    {
        let core = &mut *worker.core.borrow_mut();
        let clients = &mut *worker.clients.borrow_mut();
        let now = core.tick_if(!worker.woken());
        let request = call.ticket;
        let Some(asker) = clients.get(request.connection as usize).filter(|asker| asker.generation == request.generation) else {
            return core.desk.gone(call, Cost::default());
        };
        let generation = worker.generation();
        let way = Way::Bundle(Bundle { request, form: call.form, unrecorded: false });
        let id =
            clients.insert(Client::new(way, asker.peer, generation, asker.task.clone(), now, now + worker.limits.connection_age)) as u32;
        if let Some(asker) = clients.get_mut(request.connection as usize) {
            asker.bundles.push((id, generation));
        }
        let Some(bundle) = clients.get_mut(id as usize) else { return };
        // All are asked for before the first may be answered: the answer is not whole before the last.
        let first = bundle.output.ask();
        for _ in 1..items.items.len() {
            bundle.output.ask();
        }
        for (range, n) in items.items.iter().zip(0..) {
            let item = items.body.get(range.clone()).unwrap_or_default();
            let ticket = Ticket { connection: id, generation, number: first.wrapping_add(n) };
            match core.admit_part(&call, items, item, ticket, &mut bundle.output) {
                Admitted::Exclusive(call) => started.push(Start::Exclusive(call)),
                Admitted::Told | Admitted::Queued | Admitted::Crowded | Admitted::Forward(_) | Admitted::Several(..) => {}
            }
        }
        if bundle.output.backlog() > 0 && !std::mem::replace(&mut bundle.dirty, true) {
            worker.soil(id);
        }
        core.desk.recycle(call);
    }
    worker.wake();
    for start in started {
        start.spawn(worker);
    }
}

/// Gives the request its answer, if the last of its calls has its own by now; the request's connection, to be written.
pub fn complete(clients: &mut Slab<Client>, id: u32, date: &Date) -> Option<u32> {
    let Client { way: Way::Bundle(bundle), output, generation, .. } = clients.get(id as usize)? else { return None };
    let (bundle, generation) = (*bundle, *generation);
    if !output.whole() {
        return None;
    }
    let done = clients.try_remove(id as usize)?;
    done.notify();
    let asker = clients.get_mut(bundle.request.connection as usize).filter(|asker| asker.generation == bundle.request.generation)?;
    asker.bundles.retain(|part| *part != (id, generation));
    let number = bundle.request.number;
    let mut form = bundle.form;
    form.close = asker.output.says_close(number, form.close);
    asker.output.answer(number, |out| {
        if bundle.unrecorded {
            let mut body = Vec::new();
            problem::write(Code::SpoolFull, None, &[], &mut body);
            response::problem(form, date, Code::SpoolFull, None, None, body.len(), out);
            out.extend_from_slice(&body);
        } else {
            bulk::answer(form, date, done.output.pending(), out);
        }
    });
    asker.notify();
    (!std::mem::replace(&mut asker.dirty, true)).then_some(bundle.request.connection)
}

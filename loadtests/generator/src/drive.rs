//! The loop: one thread, one epoll; sends what is due, reads what came, judges it. Always ends: by `--duration`, `--calls`, `--until` and grace.
//! May reject: nothing after its start. IO: sockets, the clock, the log of run ids, whether one file is there, /proc at the two ends of the counted part.
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::answer::{Answer, HEAD_LIMIT};
use crate::arrivals::{Random, Schedule};
use crate::connection::{Connection, Flight, Loss, Phase};
use crate::report::{Cpu, Report, Stats};
use crate::run_ids::RunIds;
use crate::settings::Load;
use crate::template::{Mix, Template, Verdict};
use crate::{bulk, cpu, h2};

/// Unanswered calls are looked through this often.
const SWEEP_NS: u64 = 10_000_000;
/// The trees of watched processes are walked this long before the counted part, because a walk takes ms.
const WALK_NS: u64 = 50_000_000;
/// Whether the file of `--until` is there is looked up this often.
const UNTIL_NS: u64 = 50_000_000;
/// Per read; behind it room for an unfinished head.
const READ: usize = 256 << 10;

/// Why a run broke off.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The log of run ids.
    #[error("run ids cannot be written: {0}")]
    RunIds(io::Error),
    /// epoll.
    #[error("cannot wait for sockets: {0}")]
    Wait(io::Error),
}

/// Everything that judging an answer touches.
struct Judge<'a> {
    load: &'a Load,
    stats: Stats,
    ids: RunIds,
    id_count: u64,
    scratch: Vec<u8>,
    warm_ns: u64,
}

impl Judge<'_> {
    fn answer(&mut self, flight: Flight, answer: &Answer<'_>, now: u64) -> io::Result<()> {
        if let Some(id) = &answer.run_id {
            self.ids.push(id)?;
            self.id_count += 1;
        }
        let is_counted = flight.intended >= self.warm_ns;
        let Some(template) = self.load.templates.get(flight.template as usize) else { return Ok(()) };
        if template.bulk.is_some() && answer.status == 200 {
            return self.bulk(template, flight, answer, is_counted.then_some(now));
        }
        if !is_counted {
            return Ok(());
        }
        let stats = &mut self.stats;
        // A problem of a whole bulk is the answer to all its calls.
        let calls = template.calls();
        stats.answered += calls;
        stats.bytes += answer.size;
        stats.without_run_id += u64::from(answer.run_id.is_none());
        *stats.statuses.entry(answer.status).or_default() += calls;
        if let Some(count) = stats.templates.get_mut(flight.template as usize) {
            *count += calls;
        }
        stats.latency.saturating_record_n(now.saturating_sub(flight.intended), calls);
        let whole = answer.size == answer.body.len() as u64;
        match template.expect.check(&template.keys, flight.key, answer.status, answer.body, whole, &mut self.scratch) {
            Verdict::Right => {
                stats.right += 1;
                stats.answer.saturating_record(now.saturating_sub(flight.sent));
            }
            Verdict::OtherStatus if self.load.tolerate.contains(&answer.status) => {}
            verdict => {
                if verdict == Verdict::WrongBody {
                    stats.wrong += calls;
                } else {
                    stats.other_status += calls;
                }
                stats.sample(|| {
                    let body = String::from_utf8_lossy(answer.body.get(..300).unwrap_or(answer.body)).into_owned();
                    format!("{} key {}: {} {body}", template.name, flight.key, answer.status)
                });
            }
        }
        Ok(())
    }

    /// Judges each entry of a bulk's answer against its own call; entries that aren't there are wrong. `now` is None in the warm-up.
    fn bulk(&mut self, template: &Template, flight: Flight, answer: &Answer<'_>, now: Option<u64>) -> io::Result<()> {
        let mut entries = bulk::entries(answer.body);
        let stats = &mut self.stats;
        for key in template.keys_of(flight.key) {
            let entry = entries.next();
            if let Some(id) = entry.and_then(|entry| entry.run_id) {
                self.ids.push(&id)?;
                self.id_count += 1;
            }
            let Some(now) = now else { continue };
            stats.answered += 1;
            stats.latency.saturating_record(now.saturating_sub(flight.intended));
            if let Some(count) = stats.templates.get_mut(flight.template as usize) {
                *count += 1;
            }
            stats.without_run_id += u64::from(entry.is_none_or(|entry| entry.run_id.is_none()));
            let (status, text) = entry.map_or((0, &b""[..]), |entry| (entry.status, entry.text));
            *stats.statuses.entry(status).or_default() += 1;
            match template.expect.check(&template.keys, key, status, text, true, &mut self.scratch) {
                Verdict::Right => {
                    stats.right += 1;
                    stats.answer.saturating_record(now.saturating_sub(flight.sent));
                }
                Verdict::OtherStatus if self.load.tolerate.contains(&status) => {}
                verdict => {
                    *if verdict == Verdict::WrongBody { &mut stats.wrong } else { &mut stats.other_status } += 1;
                    stats.sample(|| {
                        format!("{} key {key}: {status} {}", template.name, String::from_utf8_lossy(text.get(..300).unwrap_or(text)))
                    });
                }
            }
        }
        if now.is_some() {
            stats.bytes += answer.size;
        }
        Ok(())
    }

    /// Books one call that the server gave up.
    fn reset(&mut self, flight: Flight) {
        self.stats.errors.reset += if flight.intended >= self.warm_ns { u64::from(flight.calls) } else { 0 };
    }

    /// Books the calls that a lost connection takes with it.
    fn lost(&mut self, flights: &VecDeque<Flight>, inside: bool, loss: Loss, now: u64) {
        let errors = &mut self.stats.errors;
        if loss == Loss::Refused && now >= self.warm_ns {
            errors.refused += 1;
        }
        for (n, flight) in flights.iter().enumerate().filter(|(_, flight)| flight.intended >= self.warm_ns) {
            *match loss {
                Loss::Timeout => &mut errors.timeout,
                Loss::Malformed => &mut errors.malformed,
                _ if n == 0 && inside => &mut errors.closed_mid_answer,
                Loss::Reset => &mut errors.reset,
                Loss::Ended | Loss::Announced | Loss::Refused => &mut errors.closed,
            } += u64::from(flight.calls);
        }
    }
}

/// The call of a stream, which is mostly among the oldest.
fn take(flights: &mut VecDeque<Flight>, stream: u32) -> Option<Flight> {
    let at = flights.iter().position(|flight| flight.stream == stream)?;
    flights.remove(at)
}

struct Driver<'a> {
    load: &'a Load,
    judge: Judge<'a>,
    epoll: OwnedFd,
    start: Instant,
    connections: Vec<Connection>,
    /// Open connections with room, of an open loop. Holds each at most once, so at most all of them.
    free: VecDeque<usize>,
    /// Connections with new output, of one turn.
    dirty: Vec<usize>,
    schedule: Option<Schedule>,
    mix: Mix,
    random: Random,
    issued: u64,
    under_way: usize,
    waiting: usize,
    api_key: usize,
    reopened: u64,
    lost: u64,
    issuing: bool,
    end_ns: u64,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
}

/// Runs one load to its end.
pub fn run(load: &Load) -> Result<Report, Failed> {
    // Without it sleeps are up to 50 µs late.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let ids = RunIds::open(load.run_ids.as_deref(), load.run_ids_append).map_err(Failed::RunIds)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| Failed::Wait(error.into()))?;
    let judge = Judge {
        load,
        stats: Stats::new(load.templates.len()),
        ids,
        id_count: 0,
        scratch: Vec::new(),
        warm_ns: load.warm_up.as_nanos() as u64,
    };
    let driver = Driver {
        load,
        judge,
        epoll,
        start: Instant::now(),
        connections: (0..load.connections).map(|_| Connection::new()).collect(),
        free: VecDeque::new(),
        dirty: Vec::new(),
        schedule: load.rate.map(|rate| Schedule::new(load.arrivals, rate, load.seed)),
        mix: Mix::new(&load.templates),
        random: Random::new(load.seed),
        issued: 0,
        under_way: 0,
        waiting: load.connections,
        api_key: 0,
        reopened: 0,
        lost: 0,
        issuing: true,
        end_ns: load.duration.as_nanos() as u64,
        buffer: vec![0; READ + HEAD_LIMIT],
        scratch: Vec::new(),
    };
    driver.run()
}

impl Driver<'_> {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn run(mut self) -> Result<Report, Failed> {
        let warm_ns = self.judge.warm_ns;
        let mut trees: Option<Vec<Vec<u32>>> = None;
        let mut before: Option<(Vec<cpu::Sample>, u64)> = None;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(512);
        let (mut swept, mut looked, mut is_over) = (0, 0, false);
        self.start = Instant::now();
        loop {
            let now = self.now();
            if trees.is_none() && now + WALK_NS >= warm_ns {
                trees = Some(self.load.watched.iter().map(|watched| cpu::tree(watched.pid)).collect());
            }
            if before.is_none() && now >= warm_ns {
                let samples = trees.iter().flatten().map(|tree| cpu::sample_of(tree)).collect();
                before = Some((samples, cpu::own()));
            }
            if let Some(path) = &self.load.until
                && now >= looked + UNTIL_NS
            {
                looked = now;
                is_over |= path.exists();
            }
            if self.issuing && (is_over || now >= self.end_ns || self.issued >= self.load.calls) {
                self.end_ns = now.min(self.end_ns);
                if self.schedule.is_some() {
                    self.issue_due()?;
                }
                // A load that a file ends sends all that came due before, as soon as its connections have room; at most the grace.
                let is_patient = is_over && now < self.end_ns + self.load.grace.as_nanos() as u64;
                if !(is_patient && self.is_behind()) {
                    self.issuing = false;
                    self.undelivered();
                }
            }
            if !self.issuing && (self.under_way == 0 || now >= self.end_ns + self.load.grace.as_nanos() as u64) {
                break;
            }
            if self.waiting > 0 && self.issuing {
                self.connect_waiting(now)?;
            }
            if self.issuing && self.schedule.is_some() {
                self.issue_due()?;
            }
            if now >= swept + SWEEP_NS {
                swept = now;
                self.sweep(now);
                self.judge.ids.tick(now).map_err(Failed::RunIds)?;
            }
            let wait = Timespec::try_from(Duration::from_nanos(self.wait_ns())).ok();
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failed::Wait(error.into())),
            }
            for n in 0..events.len() {
                if let Some(event) = events.get(n) {
                    let (index, flags) = (event.data.u64() as usize, event.flags);
                    self.event(index, flags)?;
                }
            }
        }
        let ended = self.now();
        self.give_up(ended);
        self.judge.ids.flush().map_err(Failed::RunIds)?;
        Ok(self.report(&before.unwrap_or_default()))
    }

    fn report(self, (before, own_before): &(Vec<cpu::Sample>, u64)) -> Report {
        let own_ns = cpu::own() - own_before;
        let seen = |(watched, before): (&cpu::Watched, &cpu::Sample)| Cpu {
            name: watched.name.clone(),
            used_ns: cpu::used(watched.pid, before, &cpu::sample_of(&cpu::tree(watched.pid))),
        };
        Report {
            rate: self.load.rate,
            connections: self.load.connections,
            depth: self.load.depth,
            seed: self.load.seed,
            seconds: (self.end_ns.saturating_sub(self.judge.warm_ns).max(1)) as f64 / 1e9,
            names: self.load.templates.iter().map(|template| template.name.clone()).collect(),
            cpu: self.load.watched.iter().zip(before).map(seen).collect(),
            own_ns,
            run_ids: self.judge.id_count,
            reopened: self.reopened,
            lost: self.lost,
            stats: self.judge.stats,
        }
    }

    /// How long nothing is to be done.
    fn wait_ns(&self) -> u64 {
        let now = self.now();
        let mut until = now + SWEEP_NS;
        if self.issuing {
            if self.end_ns > now {
                until = until.min(self.end_ns);
            }
            if let Some(schedule) = &self.schedule
                && !self.free.is_empty()
            {
                until = until.min(schedule.due());
            }
            if self.waiting > 0 {
                let retry = |connection: &Connection| if let Phase::Waiting(at) = connection.phase { Some(at) } else { None };
                until = until.min(self.connections.iter().filter_map(retry).min().unwrap_or(until));
            }
        }
        until.saturating_sub(now)
    }

    fn connect_waiting(&mut self, now: u64) -> Result<(), Failed> {
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(index) else { break };
            if !matches!(connection.phase, Phase::Waiting(at) if at <= now) {
                continue;
            }
            if connection.connect(self.load.target, &self.load.transport).is_err() {
                self.lose(index, Loss::Refused, now);
                continue;
            }
            self.waiting -= 1;
            let mut flags = epoll::EventFlags::IN;
            if connection.phase == Phase::Connecting {
                flags |= epoll::EventFlags::OUT;
                connection.wants_write = true;
            }
            if let Some(stream) = &connection.stream {
                epoll::add(&self.epoll, stream, epoll::EventData::new_u64(index as u64), flags)
                    .map_err(|error| Failed::Wait(error.into()))?;
            }
            if connection.phase == Phase::Open {
                self.continue_with(index)?;
            }
        }
        Ok(())
    }

    /// A connection is open and may have room: a closed loop writes its next calls, an open loop lists it.
    fn continue_with(&mut self, index: usize) -> Result<(), Failed> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        if connection.phase != Phase::Open || !self.issuing || connection.is_draining {
            return Ok(());
        }
        // On HTTP/1.1 a closed loop writes a whole turn at once; HTTP/2 has as many under way as it may at any time.
        let room = self.load.depth.saturating_sub(connection.flights.len());
        if self.schedule.is_some() {
            if !connection.listed && room > 0 {
                connection.listed = true;
                self.free.push_back(index);
            }
        } else if connection.flights.is_empty() || (room > 0 && connection.h2.is_some()) {
            let now = self.now();
            for _ in 0..room {
                if self.issued < self.load.calls {
                    self.send(index, now, now);
                }
            }
            self.flush(index)?;
        }
        Ok(())
    }

    /// Sends every call that is due, as far as there is room; the rest stays due.
    fn issue_due(&mut self) -> Result<(), Failed> {
        while let Some(due) = self.schedule.as_ref().map(Schedule::due) {
            let now = self.now();
            if due > now || due >= self.end_ns || self.issued >= self.load.calls {
                break;
            }
            let Some(index) = self.free.pop_front() else { break };
            let Some(connection) = self.connections.get_mut(index) else { continue };
            connection.listed = false;
            if connection.phase != Phase::Open || connection.is_draining || connection.flights.len() >= self.load.depth {
                continue;
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            self.send(index, due, now);
            self.dirty.push(index);
            self.continue_with(index)?;
        }
        while let Some(index) = self.dirty.pop() {
            self.flush(index)?;
        }
        Ok(())
    }

    /// Calls of before the end wait to be sent.
    fn is_behind(&self) -> bool {
        self.issued < self.load.calls && self.schedule.as_ref().is_some_and(|schedule| schedule.due() < self.end_ns)
    }

    /// At the end: calls that came due and found no room count as offered.
    fn undelivered(&mut self) {
        while let Some(schedule) = &mut self.schedule {
            if schedule.due() >= self.end_ns || self.issued >= self.load.calls {
                break;
            }
            let counts = u64::from(schedule.due() >= self.judge.warm_ns);
            self.judge.stats.offered += counts;
            self.judge.stats.unsent += counts;
            self.issued += 1;
            schedule.advance();
        }
    }

    fn send(&mut self, index: usize, intended: u64, now: u64) {
        let number = self.mix.draw(&mut self.random);
        let Some(template) = self.load.templates.get(number) else { return };
        let Some(connection) = self.connections.get_mut(index) else { return };
        let (key, calls) = (template.draw(&mut self.random), template.calls());
        let api_key = self.load.api_keys.get(self.api_key).map_or(&b""[..], Vec::as_slice);
        self.api_key = if self.api_key + 1 < self.load.api_keys.len() { self.api_key + 1 } else { 0 };
        let stream = connection.stream();
        if stream > 0 {
            let secure = self.load.transport.tls.is_some();
            template.render_h2(key, api_key, stream, secure, &mut connection.output, &mut self.scratch);
        } else {
            template.render(key, api_key, &mut connection.output, &mut self.scratch);
        }
        connection.flights.push_back(Flight { template: number as u32, key, intended, sent: now, stream, calls: calls as u32 });
        self.issued += calls;
        self.under_way += 1;
        if intended >= self.judge.warm_ns {
            self.judge.stats.offered += calls;
            if self.schedule.is_some() {
                self.judge.stats.behind.saturating_record(now - intended);
            }
        }
    }

    /// Writes what waits on a connection and asks for writability when the socket is full.
    fn flush(&mut self, index: usize) -> Result<(), Failed> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        match connection.write() {
            Ok(all) => {
                if all == connection.wants_write {
                    connection.wants_write = !all;
                    let flags = if all { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
                    if let Some(stream) = &connection.stream {
                        epoll::modify(&self.epoll, stream, epoll::EventData::new_u64(index as u64), flags)
                            .map_err(|error| Failed::Wait(error.into()))?;
                    }
                }
            }
            // An answer may have come before the reset: reading tells.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => {
                let now = self.now();
                self.lose(index, Loss::Reset, now);
            }
        }
        Ok(())
    }

    fn event(&mut self, index: usize, flags: epoll::EventFlags) -> Result<(), Failed> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        match connection.phase {
            Phase::Waiting(_) => return Ok(()),
            Phase::Connecting => {
                if connection.finish_connect().is_err() {
                    let now = self.now();
                    self.lose(index, Loss::Refused, now);
                    return Ok(());
                }
                self.flush(index)?;
                return self.continue_with(index);
            }
            Phase::Open => {}
        }
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(index)?;
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            self.receive(index)?;
        }
        Ok(())
    }

    /// Reads once and judges every answer that is complete.
    fn receive(&mut self, index: usize) -> Result<(), Failed> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        let kept = connection.partial.len();
        let Some((front, room)) = self.buffer.split_at_mut_checked(kept) else { return Ok(()) };
        let read = connection.read(room);
        let now = self.start.elapsed().as_nanos() as u64;
        let count = match read {
            Ok(None) if connection.has_handshake() => return self.flush(index),
            Ok(None) => return Ok(()),
            Ok(Some(0)) => {
                if let (Some(answer), Some(&flight)) = (connection.reader.end(), connection.flights.front()) {
                    self.judge.answer(flight, &answer, now).map_err(Failed::RunIds)?;
                    connection.flights.pop_front();
                    self.under_way -= 1;
                }
                self.lose(index, Loss::Ended, now);
                return Ok(());
            }
            Ok(Some(count)) => count,
            Err(_) => {
                self.lose(index, Loss::Reset, now);
                return Ok(());
            }
        };
        front.copy_from_slice(&connection.partial);
        if connection.h2.is_some() {
            return self.receive_h2(index, kept + count, now);
        }
        let mut rest = self.buffer.get(..kept + count).unwrap_or(b"");
        let Connection { reader, flights, partial, .. } = connection;
        let mut loss = None;
        loop {
            let flight = flights.front().copied();
            let bodiless =
                flight.and_then(|flight| self.load.templates.get(flight.template as usize)).is_some_and(|template| template.head);
            match (reader.read(rest, bodiless), flight) {
                (Ok((used, None)), _) => {
                    rest = rest.get(used..).unwrap_or(b"");
                    if used == 0 || rest.is_empty() {
                        break;
                    }
                }
                (Ok((used, Some(answer))), Some(flight)) => {
                    self.judge.answer(flight, &answer, now).map_err(Failed::RunIds)?;
                    flights.pop_front();
                    self.under_way -= 1;
                    rest = rest.get(used..).unwrap_or(b"");
                    if answer.close {
                        loss = Some(Loss::Announced);
                        break;
                    }
                    if rest.is_empty() {
                        break;
                    }
                }
                // Nobody asked, as with a 408 to an idle connection.
                (Ok((_, Some(_))), None) => {
                    loss = Some(Loss::Announced);
                    break;
                }
                (Err(_), _) => {
                    loss = Some(Loss::Malformed);
                    break;
                }
            }
        }
        partial.clear();
        partial.extend_from_slice(rest);
        connection.healthy();
        if let Some(loss) = loss {
            self.lose(index, loss, now);
            return Ok(());
        }
        self.continue_with(index)
    }

    /// Judges what so many bytes of the buffer hold, in whatever order streams end.
    fn receive_h2(&mut self, index: usize, count: usize, now: u64) -> Result<(), Failed> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        let mut rest = self.buffer.get(..count).unwrap_or(b"");
        let Connection { h2, flights, partial, output, is_draining, .. } = connection;
        let Some(reader) = h2 else { return Ok(()) };
        let mut loss = None;
        loop {
            let (used, event) = match reader.read(rest) {
                Ok(read) => read,
                Err(h2::Malformed) => {
                    loss = Some(Loss::Malformed);
                    break;
                }
            };
            match event {
                Some(h2::Event::Answer(stream, answer)) => {
                    if let Some(flight) = take(flights, stream) {
                        self.judge.answer(flight, &answer, now).map_err(Failed::RunIds)?;
                        self.under_way -= 1;
                    }
                }
                Some(h2::Event::Reset(stream)) => {
                    if let Some(flight) = take(flights, stream) {
                        self.judge.reset(flight);
                        self.lost += u64::from(flight.calls);
                        self.under_way -= 1;
                    }
                }
                Some(h2::Event::GoAway(last)) => {
                    *is_draining = true;
                    while let Some(at) = flights.iter().position(|flight| flight.stream > last) {
                        if let Some(flight) = flights.remove(at) {
                            self.judge.reset(flight);
                            self.lost += 1;
                            self.under_way -= 1;
                        }
                    }
                }
                None => {}
            }
            rest = rest.get(used..).unwrap_or(b"");
            if used == 0 || rest.is_empty() {
                break;
            }
        }
        partial.clear();
        partial.extend_from_slice(rest);
        output.append(&mut reader.reply);
        if *is_draining && flights.is_empty() {
            loss = loss.or(Some(Loss::Announced));
        }
        let has_output = !output.is_empty();
        connection.healthy();
        if let Some(loss) = loss {
            self.lose(index, loss, now);
            return Ok(());
        }
        if has_output {
            self.flush(index)?;
        }
        self.continue_with(index)
    }

    /// Books a lost connection, which from now on waits for its next try.
    fn lose(&mut self, index: usize, loss: Loss, now: u64) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let inside = connection.reader.is_inside() || !connection.partial.is_empty();
        self.judge.lost(&connection.flights, inside, loss, now);
        self.lost += connection.flights.iter().map(|flight| u64::from(flight.calls)).sum::<u64>();
        self.under_way -= connection.flights.len();
        self.reopened += u64::from(connection.stream.is_some());
        self.waiting += usize::from(!matches!(connection.phase, Phase::Waiting(_)));
        connection.close(now, loss);
    }

    fn sweep(&mut self, now: u64) {
        let timeout = self.load.timeout.as_nanos() as u64;
        for index in 0..self.connections.len() {
            let oldest = self.connections.get(index).and_then(|connection| connection.flights.front());
            if oldest.is_some_and(|flight| flight.sent + timeout <= now) {
                self.lose(index, Loss::Timeout, now);
            }
        }
    }

    /// What is still under way after the grace counts as timed out.
    fn give_up(&mut self, now: u64) {
        for index in 0..self.connections.len() {
            if self.connections.get(index).is_some_and(|connection| !connection.flights.is_empty()) {
                self.lose(index, Loss::Timeout, now);
            }
        }
    }
}

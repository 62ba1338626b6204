//! A server as a place of work: connections come in, share it or queue, and leave.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// How a server divides itself among its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discipline {
    /// All are worked on at once; with more connections than cores each gets an equal share.
    /// The operating system's way with a thread or a coroutine per connection.
    Sharing,
    /// As many workers as cores, one connection each to its end; the others wait in order.
    Queueing,
}

/// Whether a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It does.
    Up,
    /// Its machine refuses connections at once: the process is gone (TCP RST).
    Refusing,
    /// Nothing comes back: the machine is gone.
    Silent,
}

/// One server, shared by all nodes.
///
/// Under [`Discipline::Sharing`] all connections progress at the same pace. So each is given, when
/// it comes, the amount of service *per connection* at which it will be done; that never changes
/// again, however many come and go, and a heap knows who is next.
#[derive(Debug)]
pub(crate) struct Station {
    discipline: Discipline,
    cores: f64,
    speed: f64,
    pub(crate) health: Health,
    running: BinaryHeap<Job>,
    waiting: VecDeque<(f64, Visit)>,
    /// Service that each running connection has got since the station was last idle, in seconds of
    /// one core; valid at time `updated`.
    served: f64,
    updated: f64,
    /// Connections that merely stay, and the cores they take together.
    held: u32,
    held_cores: f64,
}

/// Who a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    /// When it came, in seconds.
    pub(crate) since: f64,
    /// Which node chose the server.
    pub(crate) node: u32,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    done: f64,
    visit: Visit,
}

impl Station {
    pub(crate) fn new(discipline: Discipline, cores: u32) -> Self {
        Self {
            discipline,
            cores: f64::from(cores),
            speed: 1.0,
            health: Health::Up,
            running: BinaryHeap::new(),
            waiting: VecDeque::new(),
            served: 0.0,
            updated: 0.0,
            held: 0,
            held_cores: 0.0,
        }
    }

    /// A connection that takes `work` seconds of one core.
    pub(crate) fn arrive(&mut self, at: f64, work: f64, visit: Visit) {
        self.advance(at);
        if self.discipline == Discipline::Queueing && self.running.len() as f64 >= self.cores {
            self.waiting.push_back((work, visit));
        } else {
            self.start(work, visit);
        }
    }

    /// The connection that is done next leaves, at the time that [`Station::next_departure`] said.
    pub(crate) fn depart(&mut self, at: f64) -> Option<Visit> {
        self.advance(at);
        let job = self.running.pop()?;
        // Exactly what it was promised: rounding must not add up.
        self.served = self.served.max(job.done);
        if let Some((work, visit)) = self.waiting.pop_front() {
            self.start(work, visit);
        }
        if self.running.is_empty() {
            self.served = 0.0;
        }
        Some(job.visit)
    }

    /// When the next connection is done if nothing else happens; infinite if there is none.
    pub(crate) fn next_departure(&self) -> f64 {
        match self.running.peek() {
            Some(job) => self.updated + (job.done - self.served).max(0.0) / self.pace(),
            None => f64::INFINITY,
        }
    }

    /// A connection that merely stays and takes this share of a core begins.
    pub(crate) fn hold(&mut self, at: f64, cores: f64) {
        self.advance(at);
        self.held += 1;
        self.held_cores += cores;
    }

    /// It ends.
    pub(crate) fn release(&mut self, at: f64, cores: f64) {
        self.advance(at);
        self.held -= 1;
        self.held_cores -= cores;
    }

    /// From now on it works this much faster than at first.
    pub(crate) fn set_speed(&mut self, at: f64, speed: f64) {
        self.advance(at);
        self.speed = speed;
    }

    /// It crashes: all connections are gone. Those that need work are returned.
    pub(crate) fn drop_all(&mut self, at: f64) -> Vec<Visit> {
        self.advance(at);
        let waiting = self.waiting.drain(..).map(|(_, visit)| visit);
        let mut gone: Vec<Visit> = self.running.drain().map(|job| job.visit).collect();
        gone.extend(waiting);
        self.served = 0.0;
        self.held = 0;
        self.held_cores = 0.0;
        gone
    }

    /// How many connections it has.
    pub(crate) fn connections(&self) -> u32 {
        let working = self.running.len() + self.waiting.len();
        u32::try_from(working).unwrap_or(u32::MAX) + self.held
    }

    /// Connections per core.
    pub(crate) fn load(&self) -> f64 {
        f64::from(self.connections()) / self.cores
    }

    fn start(&mut self, work: f64, visit: Visit) {
        let done = self.served + work;
        self.running.push(Job { done, visit });
    }

    fn advance(&mut self, at: f64) {
        if !self.running.is_empty() {
            self.served += (at - self.updated) * self.pace();
        }
        self.updated = at;
    }

    /// Seconds of one core that each running connection gets per second.
    fn pace(&self) -> f64 {
        // Connections that stay never starve those that work altogether.
        let cores = (self.cores - self.held_cores).max(self.cores / 10.0);
        self.speed * (cores / self.running.len() as f64).min(1.0)
    }
}

impl Ord for Job {
    /// The heap's top is who is done first; of two at once, who came first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_end = other.done.total_cmp(&self.done);
        by_end.then_with(|| other.visit.since.total_cmp(&self.visit.since))
    }
}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Job {}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(since: f64) -> Visit {
        Visit { since, node: 0 }
    }

    /// When each arrival (time, work) leaves, in order of leaving.
    fn departures(mut station: Station, arrivals: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut left = Vec::new();
        let mut arrivals = arrivals.iter().copied().peekable();
        loop {
            let next = station.next_departure();
            match arrivals.peek() {
                Some(&(at, work)) if at < next => {
                    arrivals.next();
                    station.arrive(at, work, visit(at));
                }
                None if next.is_infinite() => return left,
                _ => {
                    let visit = station.depart(next).unwrap();
                    left.push((visit.since, next));
                }
            }
        }
    }

    #[test]
    fn sharing_divides_one_core() {
        // Alone for 1 s, then two share: 1 s of work left takes 2 s, then the last is alone again.
        let station = Station::new(Discipline::Sharing, 1);
        let left = departures(station, &[(0.0, 2.0), (1.0, 2.0)]);
        assert_eq!(left, [(0.0, 3.0), (1.0, 4.0)]);
    }

    #[test]
    fn as_many_as_cores_do_not_disturb_each_other() {
        let station = Station::new(Discipline::Sharing, 2);
        let left = departures(station, &[(0.0, 2.0), (1.0, 2.0)]);
        assert_eq!(left, [(0.0, 2.0), (1.0, 3.0)]);
    }

    #[test]
    fn queueing_serves_in_order() {
        let station = Station::new(Discipline::Queueing, 1);
        let left = departures(station, &[(0.0, 2.0), (0.5, 1.0), (0.6, 0.1)]);
        let times: Vec<f64> = left.iter().map(|&(_, at)| at).collect();
        for (time, expected) in times.iter().zip([2.0, 3.0, 3.1]) {
            assert!((time - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn speed_and_stayers_change_the_pace() {
        let mut station = Station::new(Discipline::Sharing, 1);
        station.arrive(0.0, 4.0, visit(0.0));
        station.set_speed(1.0, 0.5);
        assert!((station.next_departure() - 7.0).abs() < 1e-9);
        station.hold(3.0, 0.5);
        // 2 s of work left at half of half the pace.
        assert!((station.next_departure() - 11.0).abs() < 1e-9);
        assert_eq!(station.connections(), 2);
        station.release(3.0, 0.5);
        assert_eq!(station.drop_all(3.0), [visit(0.0)]);
        assert_eq!(station.connections(), 0);
        assert!(station.next_departure().is_infinite());
    }
}

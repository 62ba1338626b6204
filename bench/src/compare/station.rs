//! A server as a service station of queueing theory: connections share its cores, or queue.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// How a server divides its cores among its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discipline {
    /// All connections are served at once. If there are more than cores, each gets an equal share:
    /// a thread or coroutine per connection.
    Sharing,
    /// Each core serves one connection to its end; the others wait in order.
    Queueing,
}

/// Whether a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It answers.
    Up,
    /// Its machine refuses connections at once (TCP RST): the process is gone.
    Refusing,
    /// Its machine does not answer.
    Silent,
}

/// A server, shared by all nodes.
///
/// With [`Discipline::Sharing`] all connections progress at the same pace. So the service *per
/// connection* at which a connection will be complete is known at its arrival, and later arrivals
/// and departures do not change it. A heap of these values gives the next departure.
#[derive(Debug)]
pub(crate) struct Station {
    discipline: Discipline,
    cores: f64,
    speed: f64,
    pub(crate) health: Health,
    running: BinaryHeap<Job>,
    waiting: VecDeque<(f64, Connection)>,
    /// Seconds of one core per running connection, from the last time the station was idle until
    /// `updated`.
    served: f64,
    updated: f64,
    /// Connections that stay open and do little, and the cores that they take in total.
    idle: u32,
    idle_cores: f64,
}

/// A connection at a station.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Connection {
    /// The time it arrived, in seconds.
    pub(crate) since: f64,
    /// The node that chose the server.
    pub(crate) node: u32,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    done: f64,
    connection: Connection,
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
            idle: 0,
            idle_cores: 0.0,
        }
    }

    /// Adds a connection that needs `work` seconds of one core.
    pub(crate) fn arrive(&mut self, at: f64, work: f64, connection: Connection) {
        self.advance(at);
        if self.discipline == Discipline::Queueing && self.running.len() as f64 >= self.cores {
            self.waiting.push_back((work, connection));
        } else {
            self.start(work, connection);
        }
    }

    /// Removes the connection that is complete at the time [`Station::next_departure`] returned.
    pub(crate) fn depart(&mut self, at: f64) -> Option<Connection> {
        self.advance(at);
        let job = self.running.pop()?;
        // Use the exact value, so that rounding errors do not add up.
        self.served = self.served.max(job.done);
        if let Some((work, connection)) = self.waiting.pop_front() {
            self.start(work, connection);
        }
        // Restart from 0 when idle, so that sums of many arrivals do not lose precision.
        if self.running.is_empty() {
            self.served = 0.0;
        }
        Some(job.connection)
    }

    /// Returns when the next connection will be complete if none arrives; infinite without connections.
    pub(crate) fn next_departure(&self) -> f64 {
        match self.running.peek() {
            Some(job) => self.updated + (job.done - self.served).max(0.0) / self.pace(),
            None => f64::INFINITY,
        }
    }

    /// Adds a connection that stays open and takes this share of a core.
    pub(crate) fn add_idle(&mut self, at: f64, cores: f64) {
        self.advance(at);
        self.idle += 1;
        self.idle_cores += cores;
    }

    /// Removes such a connection.
    pub(crate) fn remove_idle(&mut self, at: f64, cores: f64) {
        self.advance(at);
        self.idle -= 1;
        self.idle_cores -= cores;
    }

    /// Sets the speed, relative to that at the start.
    pub(crate) fn set_speed(&mut self, at: f64, speed: f64) {
        self.advance(at);
        self.speed = speed;
    }

    /// Drops all connections, as in a crash, and returns those with work.
    pub(crate) fn drop_all(&mut self, at: f64) -> Vec<Connection> {
        self.advance(at);
        let waiting = self.waiting.drain(..).map(|(_, connection)| connection);
        let mut gone: Vec<Connection> = self.running.drain().map(|job| job.connection).collect();
        gone.extend(waiting);
        self.served = 0.0;
        self.idle = 0;
        self.idle_cores = 0.0;
        gone
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> u32 {
        let working = self.running.len() + self.waiting.len();
        u32::try_from(working).unwrap_or(u32::MAX) + self.idle
    }

    /// Returns the number of connections per core.
    pub(crate) fn load(&self) -> f64 {
        f64::from(self.connections()) / self.cores
    }

    fn start(&mut self, work: f64, connection: Connection) {
        let done = self.served + work;
        self.running.push(Job { done, connection });
    }

    fn advance(&mut self, at: f64) {
        if !self.running.is_empty() {
            self.served += (at - self.updated) * self.pace();
        }
        self.updated = at;
    }

    /// Returns the seconds of one core that each running connection gets per second.
    fn pace(&self) -> f64 {
        // Idle connections leave at least a tenth of the cores to the others.
        let cores = (self.cores - self.idle_cores).max(self.cores / 10.0);
        self.speed * (cores / self.running.len() as f64).min(1.0)
    }
}

impl Ord for Job {
    /// `BinaryHeap` returns the greatest first, so the connection that is complete first is the
    /// greatest. In a tie, it is the one that arrived first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_end = other.done.total_cmp(&self.done);
        by_end.then_with(|| other.connection.since.total_cmp(&self.connection.since))
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

    fn connection(since: f64) -> Connection {
        Connection { since, node: 0 }
    }

    /// Returns the time of arrival and departure of each connection (time, work), by departure.
    fn departures(mut station: Station, arrivals: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut left = Vec::new();
        let mut arrivals = arrivals.iter().copied().peekable();
        loop {
            let next = station.next_departure();
            match arrivals.peek() {
                Some(&(at, work)) if at < next => {
                    arrivals.next();
                    station.arrive(at, work, connection(at));
                }
                None if next.is_infinite() => return left,
                _ => {
                    let connection = station.depart(next).unwrap();
                    left.push((connection.since, next));
                }
            }
        }
    }

    #[test]
    fn connections_share_one_core() {
        // Alone for 1 s; then two share, so 1 s of work takes 2 s; then the last one is alone again.
        let station = Station::new(Discipline::Sharing, 1);
        let left = departures(station, &[(0.0, 2.0), (1.0, 2.0)]);
        assert_eq!(left, [(0.0, 3.0), (1.0, 4.0)]);
    }

    #[test]
    fn with_enough_cores_connections_do_not_slow_each_other_down() {
        let station = Station::new(Discipline::Sharing, 2);
        let left = departures(station, &[(0.0, 2.0), (1.0, 2.0)]);
        assert_eq!(left, [(0.0, 2.0), (1.0, 3.0)]);
    }

    #[test]
    fn queued_connections_are_served_in_order() {
        let station = Station::new(Discipline::Queueing, 1);
        let left = departures(station, &[(0.0, 2.0), (0.5, 1.0), (0.6, 0.1)]);
        let times: Vec<f64> = left.iter().map(|&(_, at)| at).collect();
        for (time, expected) in times.iter().zip([2.0, 3.0, 3.1]) {
            assert!((time - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn speed_and_idle_connections_change_the_pace() {
        let mut station = Station::new(Discipline::Sharing, 1);
        station.arrive(0.0, 4.0, connection(0.0));
        station.set_speed(1.0, 0.5);
        assert!((station.next_departure() - 7.0).abs() < 1e-9);
        station.add_idle(3.0, 0.5);
        // 2 s of work are left, at half the speed and with half of the core.
        assert!((station.next_departure() - 11.0).abs() < 1e-9);
        assert_eq!(station.connections(), 2);
        station.remove_idle(3.0, 0.5);
        assert_eq!(station.drop_all(3.0), [connection(0.0)]);
        assert_eq!(station.connections(), 0);
        assert!(station.next_departure().is_infinite());
    }
}

//! Measures the time of a pick by scheduler and number of servers: `cargo bench -p schedulers`.
//!
//! Times are in nanoseconds, the least of several rounds, because other load on the machine can only add
//! time. A row such as `lc + connection` includes the update of the connection counts after the pick.
//! At the start every server has as many active connections as its weight requires, so ties are
//! common: the worst case for an index.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program that measures time and prints it"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use schedulers::{Balancer, Implementation, Request};

#[path = "pick/subject.rs"]
mod subject;

use subject::{HEAVY, Load, SIZES, Subject, request, subjects};

const ROUNDS: usize = 300;
/// Short, so that some rounds are not interrupted.
const ROUND: Duration = Duration::from_micros(300);

fn main() {
    println!("nanoseconds per pick\n");
    print!("{:<28}", "servers");
    for size in SIZES {
        print!("{size:>10}");
    }
    println!("{:>14}", "16384 / 256");
    let mut rows: Vec<Row> = Vec::new();
    for subject in subjects() {
        let row = Row::measure(subject);
        row.print();
        rows.push(row);
    }
    ratios(&rows);
    targets(&rows);
}

/// The times of one subject, one per size.
struct Row {
    subject: Subject,
    nanoseconds: [f64; SIZES.len()],
}

impl Row {
    fn measure(subject: Subject) -> Self {
        Self {
            subject,
            nanoseconds: SIZES.map(|size| time(subject, size)),
        }
    }

    fn print(&self) {
        print!("{:<28}", self.subject.to_string());
        for time in self.nanoseconds {
            print!("{time:>10.1}");
        }
        println!("{:>14.2}", self.growth());
    }

    /// Returns the time at 16384 servers divided by that at 256.
    fn growth(&self) -> f64 {
        self.nanoseconds[4] / self.nanoseconds[2]
    }

    fn at_2048(&self) -> f64 {
        self.nanoseconds[3]
    }
}

fn time(subject: Subject, size: usize) -> f64 {
    let mut balancer = subject.balancer(size);
    let mut client = 0;
    let mut batch = |count: u32| {
        let started = Instant::now();
        for _ in 0..count {
            client = step(&mut balancer, subject.load, client);
        }
        started.elapsed()
    };
    let mut count = 1;
    while batch(count) < ROUND {
        count *= 2;
    }
    if subject.load == Load::FewHeavy {
        // Count whole cycles: the cost of a pick differs within a cycle.
        let servers = u32::try_from(size).unwrap_or(u32::MAX);
        count = count.next_multiple_of(servers + servers.div_ceil(64) * (HEAVY - 1));
    }
    let rounds = (0..ROUNDS).map(|_| batch(count).as_secs_f64() * 1e9 / f64::from(count));
    rounds.fold(f64::INFINITY, f64::min)
}

/// Makes one pick for the next client, and counts the connection if `load` says so.
#[inline]
fn step(balancer: &mut Balancer, load: Load, client: u32) -> u32 {
    let asked: Request = request(client);
    let picked = black_box(balancer.pick(black_box(&asked)));
    if let (Load::Connection, Some(id)) = (load, picked) {
        // Cannot fail: the server was just picked.
        let _ = black_box(balancer.connected(id));
    }
    client.wrapping_add(1)
}

/// Prints the ratio of the scan's time and the index's time.
fn ratios(rows: &[Row]) {
    println!("\ntime of the scan / time of the index\n");
    for plain in rows {
        let Some(indexed) = indexed_of(rows, plain) else {
            continue;
        };
        print!("{:<28}", indexed.subject.to_string());
        for (plain, indexed) in plain.nanoseconds.iter().zip(indexed.nanoseconds) {
            print!("{:>10.1}", plain / indexed);
        }
        println!();
    }
}

fn indexed_of<'a>(rows: &'a [Row], plain: &Row) -> Option<&'a Row> {
    let wanted = Subject {
        implementation: Implementation::Indexed,
        ..plain.subject
    };
    let is_plain = plain.subject.implementation == Implementation::Plain;
    rows.iter().find(|row| is_plain && row.subject == wanted)
}

fn targets(rows: &[Row]) {
    println!("\ntargets\n");
    let say = |what: String, is_met: bool| {
        println!("{:<8}{what}", if is_met { "met" } else { "MISSED" });
    };
    let defaults = || {
        rows.iter()
            .filter(|row| row.subject.implementation == Implementation::Indexed)
    };
    for row in defaults() {
        let (subject, time) = (row.subject, row.at_2048());
        if ["rr", "wrr", "sh", "dh", "mh"].contains(&subject.name) && subject.load == Load::None {
            say(
                format!("{subject}: {time:.1} ns at 2048 servers (target: below 20 ns)"),
                time < 20.0,
            );
        }
    }
    for plain in rows {
        let Some(indexed) = indexed_of(rows, plain) else {
            continue;
        };
        let name = indexed.subject.name;
        if name != "wrr" && indexed.subject.load == Load::Connection {
            let ratio = plain.at_2048() / indexed.at_2048();
            say(
                format!(
                    "{}: {ratio:.0} times faster than the scan at 2048 servers (target: 30)",
                    indexed.subject
                ),
                ratio >= 30.0,
            );
        }
        say(
            format!(
                "{}: {:.2} times the time from 256 to 16384 servers (target: at most 2)",
                indexed.subject,
                indexed.growth()
            ),
            indexed.growth() <= 2.0,
        );
    }
}

//! Limits the number of instructions of a pick. `cargo bench` measures the time.
//!
//! The program starts itself again and steps through the child with ptrace, one instruction at a time.
//! The number is exact and the same in every run, whatever the load of the machine. It needs no
//! performance counters, which virtual machines seldom have, and no valgrind. System calls and page
//! faults do not count: the child touches all memory before the counted part.
//!
//! The crate is counted as compiled for tests: optimised (`profile.dev.package.schedulers`), with
//! overflow checks.

#![expect(clippy::print_stdout, reason = "this program prints what it counts")]

use std::hint::black_box;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use schedulers::{Balancer, Implementation};

#[path = "../benches/pick/subject.rs"]
mod subject;

use subject::{Load, SIZES, Subject, request, subjects};

/// Set in the environment of the child.
const CHILD: &str = "SCHEDULERS_INSTRUCTIONS_CHILD";

/// How many picks are counted per case; fewer for scans of many servers.
const PICKS: u32 = 16;

/// The limit at 2048 servers: the count on x86-64 with the toolchain that the repository pins, plus
/// 10 %. Incremental compilation changes a count by up to 5 %.
#[cfg(target_arch = "x86_64")]
const BUDGETS: &[(&str, u64)] = &[
    ("rr", 73),
    ("wrr", 172),
    ("sh", 87),
    ("dh", 64),
    ("mh", 162),
    ("lc", 499),
    ("wlc", 690),
    ("sed", 679),
    ("nq", 693),
];
/// Counts of other processors are not comparable; only the ratios are checked there.
#[cfg(not(target_arch = "x86_64"))]
const BUDGETS: &[(&str, u64)] = &[];

/// By how many times the scan of 2048 servers must exceed a pick with an index.
const LEAST_RATIO: u64 = 30;

fn main() -> anyhow::Result<ExitCode> {
    if std::env::var_os(CHILD).is_some() {
        run_child()?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = count_all()?;
    print(&rows);
    let complaints = complaints(&rows);
    for complaint in &complaints {
        println!("LIMIT EXCEEDED: {complaint}");
    }
    Ok(if complaints.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the counted cases, in the same order in parent and child.
fn cases() -> impl Iterator<Item = (Subject, usize, u32)> {
    subjects().into_iter().flat_map(|subject| {
        SIZES.into_iter().filter_map(move |size| {
            let picks = match (is_scan(subject), size) {
                // The cost of a pick depends on the round, so count enough picks for several rounds.
                (false, _) if subject.name == "wrr" => 8 * PICKS,
                (false, _) => PICKS,
                (true, ..=256) => 2,
                (true, ..=2_048) => 1,
                // Stepping through such a scan takes a second, and no limit needs it.
                (true, _) => return None,
            };
            Some((subject, size, picks))
        })
    })
}

fn is_scan(subject: Subject) -> bool {
    let always = ["fo", "ovf", "twos", "lblc", "lblcr"];
    subject.implementation == Implementation::Plain || always.contains(&subject.name)
}

/// The child: raises a signal before and after the counted part, and around an empty part.
fn run_child() -> anyhow::Result<()> {
    ptrace::traceme().context("allowing to be traced")?;
    for (subject, size, picks) in cases() {
        let mut balancer = subject.balancer(size);
        let client = picks_of(&mut balancer, subject.load, 0, PICKS);
        raise(Signal::SIGUSR1)?;
        raise(Signal::SIGUSR1)?;
        picks_of(&mut balancer, subject.load, client, picks);
        raise(Signal::SIGUSR1)?;
    }
    Ok(())
}

fn picks_of(balancer: &mut Balancer, load: Load, first: u32, count: u32) -> u32 {
    for client in first..first + count {
        let picked = black_box(balancer.pick(&black_box(request(client))));
        if let (Load::Connection, Some(id)) = (load, picked) {
            // Cannot fail: the server was just picked.
            let _ = black_box(balancer.connected(id));
        }
    }
    first + count
}

/// The instructions per pick of one subject, one number per size.
struct Row {
    subject: Subject,
    instructions: Vec<u64>,
}

impl Row {
    fn at(&self, size: usize) -> Option<u64> {
        let index = SIZES.iter().position(|&it| it == size)?;
        self.instructions.get(index).copied()
    }
}

fn count_all() -> anyhow::Result<Vec<Row>> {
    let program = std::env::current_exe().context("finding this program")?;
    let child = Command::new(program).env(CHILD, "1").spawn();
    let pid = Pid::from_raw(child.context("starting the child")?.id().try_into()?);
    let mut rows: Vec<Row> = Vec::new();
    for (subject, _, picks) in cases() {
        wait_for_mark(pid)?;
        let overhead = step_to_mark(pid)?;
        let counted = step_to_mark(pid)?;
        ptrace::cont(pid, None)?;
        let instructions = counted.saturating_sub(overhead) / u64::from(picks);
        match rows.last_mut() {
            Some(row) if row.subject == subject => row.instructions.push(instructions),
            _ => rows.push(Row {
                subject,
                instructions: vec![instructions],
            }),
        }
    }
    match waitpid(pid, None)? {
        WaitStatus::Exited(_, 0) => Ok(rows),
        other => bail!("the child: {other:?}"),
    }
}

fn wait_for_mark(pid: Pid) -> anyhow::Result<()> {
    match waitpid(pid, None)? {
        WaitStatus::Stopped(_, Signal::SIGUSR1) => Ok(()),
        other => bail!("the child: {other:?}"),
    }
}

/// Steps to the next signal and returns the number of instructions.
fn step_to_mark(pid: Pid) -> anyhow::Result<u64> {
    let mut count = 0;
    loop {
        ptrace::step(pid, None)?;
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => count += 1,
            WaitStatus::Stopped(_, Signal::SIGUSR1) => return Ok(count),
            other => bail!("the child: {other:?}"),
        }
    }
}

fn print(rows: &[Row]) {
    println!("instructions per pick\n");
    print!("{:<28}", "servers");
    for size in SIZES {
        print!("{size:>10}");
    }
    println!();
    for row in rows {
        print!("{:<28}", row.subject.to_string());
        for count in &row.instructions {
            print!("{count:>10}");
        }
        println!();
    }
}

fn complaints(rows: &[Row]) -> Vec<String> {
    let mut complaints = Vec::new();
    for row in rows {
        let (subject, at_2048) = (row.subject, row.at(2_048).unwrap_or_default());
        if is_scan(subject) {
            continue;
        }
        let budget = BUDGETS.iter().find(|&&(name, _)| name == subject.name);
        if let Some(&(_, budget)) = budget
            && at_2048 > budget
        {
            complaints.push(format!(
                "{subject} takes {at_2048} instructions, the limit is {budget}"
            ));
        }
        if let (Some(few), Some(many)) = (row.at(256), row.at(16_384))
            && many > 2 * few
        {
            complaints.push(format!(
                "{subject} takes {few} instructions with 256 servers, but {many} with 16384"
            ));
        }
        let is_its_scan = |other: &&Row| {
            let indexed = Subject {
                implementation: Implementation::Indexed,
                ..other.subject
            };
            is_scan(other.subject) && indexed == subject
        };
        let scan = rows.iter().find(is_its_scan).and_then(|row| row.at(2_048));
        if let (Load::Connection, Some(scan)) = (subject.load, scan)
            && scan < LEAST_RATIO * at_2048
        {
            complaints.push(format!(
                "{subject} takes {at_2048} instructions, but the scan only {scan}"
            ));
        }
    }
    complaints
}

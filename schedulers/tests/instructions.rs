//! How many instructions a pick takes: a gate for what `cargo bench` measures in time.
//!
//! The program starts itself again and steps through the copy with ptrace, one instruction at a time.
//! The number is exact, the same at every run whatever else the machine does, and needs neither
//! performance counters, which virtual machines seldom have, nor valgrind. System calls and page
//! faults do not count; the copy touches everything before it is counted.
//!
//! It counts the crate as it is compiled for tests: optimised (`profile.dev.package.schedulers`), with
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

/// Set in the environment of the copy.
const COPY: &str = "SCHEDULERS_INSTRUCTIONS_COPY";

/// How many picks are counted, except of scans of many servers.
const PICKS: u32 = 16;

/// Instructions at 2048 servers, as counted on x86-64 with the toolchain that the repository pins, and
/// a tenth more.
#[cfg(target_arch = "x86_64")]
const BUDGETS: &[(&str, u64)] = &[
    ("rr", 68),
    ("wrr", 160),
    ("sh", 84),
    ("dh", 62),
    ("mh", 155),
    ("lc", 465),
    ("wlc", 640),
    ("sed", 630),
    ("nq", 630),
];
/// Instructions of other processors are not comparable; proportions are.
#[cfg(not(target_arch = "x86_64"))]
const BUDGETS: &[(&str, u64)] = &[];

/// Times that a pick of 2048 with an index must be cheaper than the scan.
const LEAST_RATIO: u64 = 30;

fn main() -> anyhow::Result<ExitCode> {
    if std::env::var_os(COPY).is_some() {
        copy()?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = count_all()?;
    print(&rows);
    let complaints = complaints(&rows);
    for complaint in &complaints {
        println!("TOO MANY: {complaint}");
    }
    Ok(if complaints.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What is counted, in the order of both programs.
fn cases() -> impl Iterator<Item = (Subject, usize, u32)> {
    subjects().into_iter().flat_map(|subject| {
        SIZES.into_iter().filter_map(move |size| {
            let picks = match (is_scan(subject), size) {
                // What its picks take differs by what the round before them needs.
                (false, _) if subject.name == "wrr" => 8 * PICKS,
                (false, _) => PICKS,
                (true, ..=256) => 2,
                (true, ..=2_048) => 1,
                // A second each, and no question.
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

/// The copy: stops before and after what is to be counted, and around nothing.
fn copy() -> anyhow::Result<()> {
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
            // Of a server that was just picked, it does not fail.
            let _ = black_box(balancer.connected(id));
        }
    }
    first + count
}

/// The instructions of one subject's pick, one per size that was counted.
struct Row {
    subject: Subject,
    instructions: Vec<u64>,
}

impl Row {
    fn at(&self, size: usize) -> Option<u64> {
        let place = SIZES.iter().position(|&it| it == size)?;
        self.instructions.get(place).copied()
    }
}

fn count_all() -> anyhow::Result<Vec<Row>> {
    let program = std::env::current_exe().context("finding this program")?;
    let copy = Command::new(program).env(COPY, "1").spawn();
    let pid = Pid::from_raw(copy.context("starting the copy")?.id().try_into()?);
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
        other => bail!("the copy: {other:?}"),
    }
}

fn wait_for_mark(pid: Pid) -> anyhow::Result<()> {
    match waitpid(pid, None)? {
        WaitStatus::Stopped(_, Signal::SIGUSR1) => Ok(()),
        other => bail!("the copy: {other:?}"),
    }
}

/// How many instructions there are up to the next mark.
fn step_to_mark(pid: Pid) -> anyhow::Result<u64> {
    let mut count = 0;
    loop {
        ptrace::step(pid, None)?;
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => count += 1,
            WaitStatus::Stopped(_, Signal::SIGUSR1) => return Ok(count),
            other => bail!("the copy: {other:?}"),
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
            complaints.push(format!("{subject} takes {at_2048} of {budget}"));
        }
        if let (Some(few), Some(many)) = (row.at(256), row.at(16_384))
            && many > 2 * few
        {
            complaints.push(format!("{subject} grows from {few} to {many}"));
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
            complaints.push(format!("{subject} takes {at_2048}, and the scan {scan}"));
        }
    }
    complaints
}

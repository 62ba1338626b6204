//! The figures of a report as tables: a row per figure, a column per proxy.

use std::fmt::Write as _;

use super::outcome::{Cost, Latency, Outcome, Step};
use super::results::Report;
use super::scenario::{Phase, Scenario};
use crate::report::table::Table;

/// A figure of an outcome.
struct Figure {
    name: &'static str,
    unit: Unit,
    of: fn(&Outcome) -> Option<f64>,
}

#[derive(Clone, Copy)]
enum Unit {
    Secs,
    Millis,
    Megabytes,
    Percent,
    /// A ratio.
    Times,
    Number,
}

impl Unit {
    fn format(self, value: f64) -> String {
        match self {
            Self::Secs if value < 10.0 => format!("{value:.2} s"),
            Self::Secs => format!("{value:.1} s"),
            Self::Millis if value < 10.0 => format!("{value:.2} ms"),
            Self::Millis => format!("{value:.0} ms"),
            Self::Megabytes => format!("{value:.1} MB"),
            Self::Percent => format!("{value:.2} %"),
            Self::Times => format!("{value:.2} times"),
            Self::Number if value < 100.0 => format!("{value:.1}"),
            Self::Number => format!("{value:.0}"),
        }
    }
}

macro_rules! figure {
    ($name:literal, $unit:ident, $of:expr) => {
        Figure {
            name: $name,
            unit: Unit::$unit,
            of: $of,
        }
    };
}

const FIGURES: &[Figure] = &[
    figure!("first programming", Secs, |it| Some(it.start?.settled_secs)),
    figure!("  its first netlink request at", Secs, |it| {
        it.start?.first_request_secs
    }),
    figure!("  the lists are sent at", Secs, |it| it.start?.lists_secs),
    figure!("  it sends the packet rules at", Secs, |it| it
        .start?
        .rules_secs),
    figure!("  it sends its first virtual server at", Secs, |it| it
        .start?
        .first_server_secs),
    figure!("  it sends its last endpoint at", Secs, |it| Some(
        it.start?.programmed_secs
    )),
    figure!("  the limit: the same requests alone", Secs, |it| {
        Some(it.start?.limit?.all())
    }),
    figure!("    virtual servers and destinations", Secs, |it| {
        Some(it.start?.limit?.servers_secs)
    }),
    figure!("    service addresses", Secs, |it| {
        Some(it.start?.limit?.addresses_secs)
    }),
    figure!("    packet rules", Secs, |it| {
        Some(it.start?.limit?.rules_secs)
    }),
    figure!("  first programming / limit", Times, |it| {
        let start = it.start?;
        Some(start.settled_secs / start.limit?.all())
    }),
    figure!(
        "  from its packet rules to its last request / limit",
        Times,
        |it| {
            let start = it.start?;
            Some((start.settled_secs - start.rules_secs?) / start.limit?.all())
        }
    ),
    figure!("  default/kubernetes works after", Secs, |it| it
        .start?
        .api_service_secs),
    figure!("  CPU of the process", Secs, |it| {
        let cpu = it.start?.cost.cpu;
        Some(cpu.user + cpu.system)
    }),
    figure!("  CPU of child processes", Secs, |it| Some(
        it.start?.cost.cpu.children
    )),
    figure!("  CPU of API server and lab", Secs, |it| Some(
        it.start?.cost.server_cpu
    )),
    figure!("  page faults", Number, |it| Some(
        it.start?.page_faults? as f64
    )),
    figure!("  netlink requests", Number, |it| Some(
        it.start?.cost.messages.requests as f64
    )),
    figure!("  resident memory", Megabytes, |it| Some(megabytes(
        it.start?.cost.memory.resident
    ))),
    figure!("  peak", Megabytes, |it| Some(megabytes(
        it.start?.cost.memory.peak
    ))),
    figure!("idle: CPU of a core", Percent, |it| {
        let cost = cost(it, Phase::Idle)?;
        Some(100.0 * cost.cpu.all() / cost.secs)
    }),
    figure!("  netlink requests", Number, |it| {
        Some(cost(it, Phase::Idle)?.messages.requests as f64)
    }),
    figure!("  resident memory", Megabytes, |it| {
        Some(megabytes(cost(it, Phase::Idle)?.memory.resident))
    }),
    figure!("churn: API to kernel, p50", Millis, |it| Some(
        latency(it)?.p50
    )),
    figure!("  p99", Millis, |it| Some(latency(it)?.p99)),
    figure!("  max", Millis, |it| Some(latency(it)?.max)),
    figure!("  changes that did not arrive", Number, |it| {
        Some(step(it, Phase::Churn)?.missed as f64)
    }),
    figure!("  CPU per change: user", Millis, |it| each(it, |cost| cost
        .cpu
        .user
        * 1e3)),
    figure!("    system", Millis, |it| each(it, |cost| cost.cpu.system
        * 1e3)),
    figure!("    child processes", Millis, |it| each(it, |cost| cost
        .cpu
        .children
        * 1e3)),
    figure!("    all, beyond that of idle time", Millis, |it| {
        Some(beyond_idle(it)? * 1e3)
    }),
    figure!("  netlink requests per change", Number, |it| {
        each(it, |cost| cost.messages.requests as f64)
    }),
    figure!("  dumps per change", Number, |it| each(
        it,
        |cost| cost.messages.dumps as f64
    )),
    figure!("  resident memory", Megabytes, |it| {
        Some(megabytes(cost(it, Phase::Churn)?.memory.resident))
    }),
    figure!("  peak", Megabytes, |it| Some(megabytes(
        cost(it, Phase::Churn)?.memory.peak
    ))),
    figure!("system calls per change", Number, |it| {
        let step = step(it, Phase::Calls)?;
        Some(step.system_calls? as f64 / f64::from(step.changes.max(1)))
    }),
    figure!("relist: CPU", Secs, |it| Some(
        cost(it, Phase::Relist)?.cpu.all()
    )),
    figure!("  netlink requests", Number, |it| {
        Some(cost(it, Phase::Relist)?.messages.requests as f64)
    }),
    figure!("  peak memory", Megabytes, |it| {
        Some(megabytes(cost(it, Phase::Relist)?.memory.peak))
    }),
    figure!("  connections lost or refused", Number, |it| refused(
        it,
        Phase::Relist
    )),
    figure!("watches reset: CPU", Secs, |it| Some(
        cost(it, Phase::Reset)?.cpu.all()
    )),
    figure!("  netlink requests", Number, |it| {
        Some(cost(it, Phase::Reset)?.messages.requests as f64)
    }),
    figure!("  connections lost or refused", Number, |it| refused(
        it,
        Phase::Reset
    )),
    figure!("API gone 10 s: caught up after", Secs, |it| {
        step(it, Phase::Outage)?.caught_up_secs
    }),
    figure!("  connections lost or refused", Number, |it| refused(
        it,
        Phase::Outage
    )),
    figure!("API silent 10 s: caught up after", Secs, |it| {
        step(it, Phase::Slow)?.caught_up_secs
    }),
    figure!("flushed table repaired after", Secs, |it| {
        step(it, Phase::Flush)?.caught_up_secs
    }),
    figure!("messages that the lab lost", Number, |it| {
        let lost = it.steps.iter().map(|step| step.cost.messages.lost);
        Some((it.start?.cost.messages.lost + lost.sum::<u64>()) as f64)
    }),
];

fn step(outcome: &Outcome, phase: Phase) -> Option<&Step> {
    outcome.steps.iter().find(|step| step.phase == phase)
}

fn cost(outcome: &Outcome, phase: Phase) -> Option<&Cost> {
    Some(&step(outcome, phase)?.cost)
}

fn refused(outcome: &Outcome, phase: Phase) -> Option<f64> {
    let seen = step(outcome, phase)?.connections?;
    Some(seen.lost as f64 + f64::from(seen.failed))
}

fn latency(outcome: &Outcome) -> Option<&Latency> {
    step(outcome, Phase::Churn)?.latency.as_ref()
}

/// Returns a cost of the churn per change.
fn each(outcome: &Outcome, of: fn(&Cost) -> f64) -> Option<f64> {
    let step = step(outcome, Phase::Churn)?;
    (step.changes > 0).then(|| of(&step.cost) / f64::from(step.changes))
}

/// Returns the CPU time of a change in seconds, without the proxy's CPU time when nothing changes.
///
/// A proxy's periodic look at the whole kernel table costs more in a larger cluster, but not because of the
/// changes. Both phases should last a multiple of the period, 30 s by default.
fn beyond_idle(outcome: &Outcome) -> Option<f64> {
    let idle = cost(outcome, Phase::Idle)?;
    let churn = step(outcome, Phase::Churn)?;
    let idle_share = idle.cpu.all() / idle.secs;
    let beyond = churn.cost.cpu.all() - idle_share * churn.cost.secs;
    (churn.changes > 0).then(|| beyond / f64::from(churn.changes))
}

/// Converts KiB to megabytes (10^6 bytes).
pub(super) fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

/// Returns the table of a scenario.
pub(super) fn table(report: &Report, scenario: &str) -> Table {
    let subjects = report.subjects();
    let mut table = Table::new(std::iter::once("").chain(subjects.iter().copied()));
    for figure in FIGURES {
        let cell = |subject: &&str| {
            let outcomes = report.of(scenario, subject);
            let values = outcomes.iter().filter_map(|it| (figure.of)(it));
            median(values).map_or_else(|| "-".to_owned(), |value| figure.unit.format(value))
        };
        let cells: Vec<String> = subjects.iter().map(cell).collect();
        if cells.iter().any(|cell| cell != "-") {
            table.row(std::iter::once(figure.name.to_owned()).chain(cells));
        }
    }
    let correct = subjects.iter().map(|subject| {
        let outcomes = report.of(scenario, subject);
        let steps = outcomes.iter().flat_map(|it| &it.steps);
        let checks: Vec<bool> = steps.filter_map(|step| step.is_correct).collect();
        match checks.iter().all(|&is_correct| is_correct) {
            _ if checks.is_empty() => "-".to_owned(),
            true => "yes".to_owned(),
            false => "NO".to_owned(),
        }
    });
    table.row(std::iter::once("IPVS has exactly the endpoints".to_owned()).chain(correct));
    table
}

/// Returns the middle value, or the lower of two.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// Returns how the cost of a change grows from the smallest to the largest number of Services, a sentence
/// per proxy, each cost the middle one of its rounds. It needs the phases of idle time and changes.
pub(super) fn growth(report: &Report) -> Vec<String> {
    let of_subject = |subject: &&str| {
        let mut sizes: Vec<(&Scenario, f64)> = report
            .scenarios()
            .into_iter()
            .filter_map(|scenario| {
                let outcomes = report.of(scenario, subject);
                let costs = outcomes.iter().filter_map(|it| beyond_idle(it));
                Some((&outcomes.first()?.scenario, median(costs)?))
            })
            .collect();
        sizes.sort_by_key(|(scenario, _)| scenario.shape.services);
        let (&(small, small_cost), &(large, large_cost)) = (sizes.first()?, sizes.last()?);
        let ratio = large_cost / small_cost;
        let is_growth = small.shape.services < large.shape.services && ratio.is_finite();
        is_growth.then(|| {
            format!(
                "{subject}: CPU time per change, beyond that of idle time, at {} is {ratio:.2} times that at {}",
                large.size(),
                small.size(),
            )
        })
    };
    report.subjects().iter().filter_map(of_subject).collect()
}

/// Returns the conditions of a scenario in a sentence.
pub(super) fn conditions(report: &Report, scenario: &str) -> String {
    let outcomes = || {
        report
            .outcomes
            .iter()
            .filter(|it| it.scenario.name == scenario)
    };
    let Some(first) = outcomes().next() else {
        return String::new();
    };
    let rounds = outcomes().map(|it| it.round).max().unwrap_or_default();
    let churn = first.scenario.churn;
    format!(
        "{} endpoints ({:?}), changes: {:?}, {} per second; Linux {}, {} API server, rounds: {rounds}",
        first.scenario.size(),
        first.scenario.shape.families,
        churn.kind,
        churn.per_second,
        first.kernel,
        first.api,
    )
}

/// Returns the notes of a scenario, one line each.
pub(super) fn notes(report: &Report, scenario: &str) -> Vec<String> {
    let outcomes = report.outcomes.iter();
    let outcomes = outcomes.filter(|it| it.scenario.name == scenario);
    let notes = outcomes.flat_map(|it| it.notes.iter().map(move |note| (it, note)));
    notes
        .map(|(it, note)| format!("{}, round {}: {note}", it.subject, it.round))
        .collect()
}

/// Returns the whole report for a terminal.
pub(super) fn text(report: &Report) -> String {
    let mut text = format!("{}\n", report.machine.describe());
    for scenario in report.scenarios() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{scenario}: {}\n{}",
            conditions(report, scenario),
            table(report, scenario).text()
        );
        for note in notes(report, scenario) {
            let _ = writeln!(text, "! {note}");
        }
    }
    for sentence in growth(report) {
        let _ = writeln!(text, "\n{sentence}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::machine::Machine;
    use super::super::scenario::Parameters;
    use super::*;
    use crate::process::Cpu;

    /// Returns an outcome of a proxy that spends `idle_cpu` and `churn_cpu` seconds of CPU time.
    fn outcome(scenario: &str, round: u32, idle_cpu: f64, churn_cpu: f64) -> Outcome {
        let step = |phase, cpu: f64, changes| Step {
            cost: Cost {
                secs: 30.0,
                cpu: Cpu {
                    system: cpu,
                    ..Cpu::default()
                },
                ..Cost::default()
            },
            changes,
            ..Step::new(phase)
        };
        Outcome {
            scenario: Scenario::named(scenario, &Parameters::default()).unwrap(),
            subject: "ipvs-proxier".to_owned(),
            round,
            api: "own".to_owned(),
            kernel: "7.2.12".to_owned(),
            start: None,
            steps: vec![
                step(Phase::Idle, idle_cpu, 0),
                step(Phase::Churn, churn_cpu, 3_000),
            ],
            memory: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn growth_compares_the_middle_rounds() {
        let report = Report {
            machine: Machine::default(),
            outcomes: vec![
                outcome("44k", 1, 0.5, 9.5),
                outcome("1k", 1, 0.0, 2.0),
                outcome("44k", 2, 0.5, 2.7),
                outcome("1k", 2, 0.0, 0.1),
                outcome("44k", 3, 0.5, 2.5),
                outcome("1k", 3, 0.0, 2.0),
            ],
        };
        assert_eq!(
            growth(&report),
            [
                "ipvs-proxier: CPU time per change, beyond that of idle time, at 44,000 x 1 is 1.10 times that \
                 at 1,000 x 10"
            ]
        );
    }

    #[test]
    fn the_median_is_a_measured_value() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(1.0));
        assert_eq!(median(std::iter::empty()), None);
    }
}

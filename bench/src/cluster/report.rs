//! The report: a section for each scenario, in which each figure has a row and each proxy a column.

use super::limit::Limit;
use super::outcome::{Cost, Latency, Outcome, Start, Step};
use super::results::Results;
use super::scenario::{Phase, Scenario};
use super::way::Way;
use crate::figures::{median, short};
use crate::report::plot::{Axis, Kind, Plot, Series};
use crate::report::table::Table;
use crate::report::{Report, Section};

/// A figure: its name, its unit, and its value in an outcome that has it.
type Figure = (&'static str, &'static str, Option<f64>);

/// The figures that are drawn against the number of Services.
const GROWING: [&str; 6] = [
    "first programming",
    "first programming: resident memory",
    "churn: API to kernel, p99",
    "churn: CPU per change",
    "new connection through a Service, p50",
    "request on an open connection, p50",
];

/// Lists figures, a line each; rustfmt would break most of them into five.
macro_rules! figures {
    ($($name:literal in $unit:literal: $value:expr;)*) => {
        vec![$(($name, $unit, $value)),*]
    };
}

/// Returns all figures of an outcome, always the same ones in the same order.
fn figures(it: &Outcome) -> Vec<Figure> {
    let start = |of: fn(&Start) -> Option<f64>| it.start.as_ref().and_then(of);
    let limit = |of: fn(&Limit) -> f64| Some(of(&it.start?.limit?));
    let step = |phase, of: fn(&Step) -> Option<f64>| step(it, phase).and_then(of);
    let cost = |phase, of: fn(&Cost) -> f64| Some(of(&self::step(it, phase)?.cost));
    let each = |of: fn(&Cost) -> f64| each(self::step(it, Phase::Churn)?, of);
    let latency = |of: fn(&Latency) -> f64| {
        let churn = self::step(it, Phase::Churn)?;
        churn.latency.as_ref().map(of)
    };
    let way = |of: fn(&Way) -> f64| Some(of(self::step(it, Phase::Way)?.way.as_ref()?) * 1e3);
    let lost = it.steps.iter().map(|step| step.cost.messages.lost);
    let lost = it.start.map(|it| it.cost.messages.lost + lost.sum::<u64>());
    let (idle, churn, relist, reset) = (Phase::Idle, Phase::Churn, Phase::Relist, Phase::Reset);
    figures! {
        "first programming" in "s": start(|it| Some(it.settled_secs));
        "  first netlink request at" in "s": start(|it| it.first_request_secs);
        "  lists are sent at" in "s": start(|it| it.lists_secs);
        "  packet rules are sent at" in "s": start(|it| it.rules_secs);
        "  first virtual server is sent at" in "s": start(|it| it.first_server_secs);
        "  last endpoint is sent at" in "s": start(|it| Some(it.programmed_secs));
        "  the limit: the same requests alone" in "s": limit(Limit::all);
        "    virtual servers and destinations" in "s": limit(|it| it.servers_secs);
        "    service addresses" in "s": limit(|it| it.addresses_secs);
        "    packet rules" in "s": limit(|it| it.rules_secs);
        "  first programming / limit" in "times": start(|it| Some(it.settled_secs / it.limit?.all()));
        "  from its packet rules to its last request / limit" in "times":
            start(|it| Some((it.settled_secs - it.rules_secs?) / it.limit?.all()));
        "  default/kubernetes works after" in "s": start(|it| it.api_service_secs);
        "  CPU of the process" in "s": start(|it| Some(it.cost.cpu.user + it.cost.cpu.system));
        "  CPU of child processes" in "s": start(|it| Some(it.cost.cpu.children));
        "  CPU of API server and lab" in "s": start(|it| Some(it.cost.server_cpu));
        "  page faults" in "": start(|it| Some(it.page_faults? as f64));
        "  netlink requests" in "": start(|it| Some(requests(&it.cost)));
        "first programming: resident memory" in "MB": start(|it| Some(resident(&it.cost)));
        "  peak" in "MB": start(|it| Some(peak(&it.cost)));
        "idle: CPU of a core" in "%": cost(idle, |it| 100.0 * it.cpu.all() / it.secs);
        "  netlink requests" in "": cost(idle, requests);
        "  resident memory" in "MB": cost(idle, resident);
        "churn: API to kernel, p50" in "ms": latency(|it| it.p50);
        "churn: API to kernel, p99" in "ms": latency(|it| it.p99);
        "  max" in "ms": latency(|it| it.max);
        "  changes that did not arrive" in "": step(churn, |it| Some(it.missed as f64));
        "churn: CPU per change" in "ms": each(|it| it.cpu.all() * 1e3);
        "  of child processes" in "ms": each(|it| it.cpu.children * 1e3);
        "  beyond that of idle time" in "ms": beyond_idle(it).map(|secs| secs * 1e3);
        "  netlink requests per change" in "": each(requests);
        "  dumps per change" in "": each(|it| it.messages.dumps as f64);
        "  resident memory" in "MB": cost(churn, resident);
        "  peak" in "MB": cost(churn, peak);
        "new connection through a Service, p50" in "us": way(|it| it.connection.p50);
        "  p99" in "us": way(|it| it.connection.p99);
        "  to its Pod itself, p50" in "us": way(|it| it.pod_connection.p50);
        "request on an open connection, p50" in "us": way(|it| it.request.p50);
        "  p99" in "us": way(|it| it.request.p99);
        "  to its Pod itself, p50" in "us": way(|it| it.pod_request.p50);
        "relist: CPU" in "s": cost(relist, |it| it.cpu.all());
        "  netlink requests" in "": cost(relist, requests);
        "  peak memory" in "MB": cost(relist, peak);
        "  connections lost or refused" in "": step(relist, refused);
        "watches reset: CPU" in "s": cost(reset, |it| it.cpu.all());
        "  netlink requests" in "": cost(reset, requests);
        "  connections lost or refused" in "": step(reset, refused);
        "API gone 10 s: caught up after" in "s": step(Phase::Outage, |it| it.caught_up_secs);
        "  connections lost or refused" in "": step(Phase::Outage, refused);
        "API silent 10 s: caught up after" in "s": step(Phase::Slow, |it| it.caught_up_secs);
        "flushed table repaired after" in "s": step(Phase::Flush, |it| it.caught_up_secs);
        "messages that the lab lost" in "": lost.map(|it| it as f64);
    }
}

fn step(outcome: &Outcome, phase: Phase) -> Option<&Step> {
    outcome.steps.iter().find(|step| step.phase == phase)
}

fn requests(cost: &Cost) -> f64 {
    cost.messages.requests as f64
}

fn resident(cost: &Cost) -> f64 {
    megabytes(cost.memory.resident)
}

fn peak(cost: &Cost) -> f64 {
    megabytes(cost.memory.peak)
}

fn refused(step: &Step) -> Option<f64> {
    let seen = step.connections?;
    Some(seen.lost as f64 + f64::from(seen.failed))
}

/// Returns a cost of the churn per change.
fn each(churn: &Step, of: fn(&Cost) -> f64) -> Option<f64> {
    (churn.changes > 0).then(|| of(&churn.cost) / f64::from(churn.changes))
}

/// Returns the CPU time of a change in seconds, without the proxy's CPU time when nothing changes.
///
/// A proxy's periodic look at the whole kernel table costs more in a larger cluster, but not because of the
/// changes. Both phases should last a multiple of the period, 30 s by default.
fn beyond_idle(outcome: &Outcome) -> Option<f64> {
    let idle = step(outcome, Phase::Idle)?.cost;
    let churn = step(outcome, Phase::Churn)?;
    let of_idle_time = idle.cpu.all() / idle.secs * churn.cost.secs;
    let beyond = churn.cost.cpu.all() - of_idle_time;
    (churn.changes > 0).then(|| beyond / f64::from(churn.changes))
}

/// Converts KiB to megabytes (10^6 bytes).
fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}

/// Returns the report.
pub(super) fn report(results: &Results) -> Report {
    let mut sections = Vec::new();
    if results.scenarios().len() > 1 {
        sections.push(growth(results));
    }
    let scenarios = results.scenarios().into_iter();
    sections.extend(scenarios.map(|scenario| section(results, scenario)));
    let lab = "All proxies run one after the other on the same lab kernel (User-Mode Linux, one processor), where \
               a system call costs about 70 times more than on a real kernel. Compare the columns, not the \
               absolute times.";
    Report {
        title: "Service proxies in large clusters".to_owned(),
        notes: vec![results.machine.describe(), lab.to_owned()],
        sections,
    }
}

/// Returns the cost against the number of Services.
fn growth(results: &Results) -> Section {
    let plot = |name: &'static str| {
        let value = |it: &Outcome| figures(it).into_iter().find(|it| it.0 == name)?.2;
        let series = results.subjects().into_iter().map(|subject| {
            let outcomes = results.outcomes.iter().filter(|it| it.subject == subject);
            let point = |it: &Outcome| Some((f64::from(it.scenario.shape.services), value(it)?));
            let mut series = Series::new(subject, outcomes.filter_map(point));
            series
                .points
                .sort_by(|one, other| one.0.total_cmp(&other.0));
            series
        });
        let first = results.outcomes.first().map(figures).unwrap_or_default();
        let unit = first.into_iter().find(|it| it.0 == name);
        Plot {
            title: name.to_owned(),
            across: Axis::new("Services", Kind::Decimal),
            up: Axis::new(unit.map_or("", |it| it.1), Kind::Decimal),
            series: series.collect(),
        }
    };
    Section {
        title: "Growth".to_owned(),
        notes: ratios(results),
        tables: Vec::new(),
        plots: GROWING.map(plot).to_vec(),
    }
}

/// Returns how the cost of a change grows from the smallest to the largest number of Services, a sentence
/// per proxy, each cost the middle one of its rounds. It needs the phases of idle time and changes.
fn ratios(results: &Results) -> Vec<String> {
    let of_subject = |subject: &str| {
        let mut sizes: Vec<(&Scenario, f64)> = results
            .scenarios()
            .into_iter()
            .filter_map(|scenario| {
                let outcomes = results.of(scenario).filter(|it| it.subject == subject);
                let cost = median(outcomes.clone().filter_map(beyond_idle))?;
                Some((&outcomes.clone().next()?.scenario, cost))
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
    results
        .subjects()
        .into_iter()
        .filter_map(of_subject)
        .collect()
}

fn section(results: &Results, scenario: &str) -> Section {
    let outcomes = results.of(scenario);
    let rounds = outcomes.clone().map(|it| it.round).max();
    let conditions = outcomes.clone().next().map(conditions).unwrap_or_default();
    let mut notes = vec![format!(
        "{conditions}, rounds: {}",
        rounds.unwrap_or_default()
    )];
    for it in outcomes.clone() {
        let failures = it.notes.iter();
        notes.extend(failures.map(|note| format!("! {}, round {}: {note}", it.subject, it.round)));
    }
    let plot = |title: &str, across, up, points: fn(&Outcome) -> Vec<(f64, f64)>| Plot {
        title: title.to_owned(),
        across,
        up,
        series: outcomes
            .clone()
            .filter(|it| it.round == 1)
            .map(|it| Series::new(&it.subject, points(it)))
            .collect(),
    };
    let latency = plot(
        "Latency from the API to the kernel",
        Axis::new("share of the changes, %", Kind::Linear),
        Axis::new("ms", Kind::Decimal),
        distribution,
    );
    let memory = plot(
        "Resident memory over time",
        Axis::new("seconds since the start", Kind::Linear),
        Axis::new("MB", Kind::Linear),
        |it| {
            let samples = it.memory.iter();
            samples.map(|&(at, kib)| (at, megabytes(kib))).collect()
        },
    );
    Section {
        title: scenario.to_owned(),
        notes,
        tables: vec![table(results, scenario)],
        plots: vec![latency, memory],
    }
}

/// Returns the conditions of an outcome.
fn conditions(it: &Outcome) -> String {
    let Scenario { shape, churn, .. } = &it.scenario;
    format!(
        "{} endpoints ({:?}), changes: {:?}, {} per second; Linux {}, {} API server",
        it.scenario.size(),
        shape.families,
        churn.kind,
        churn.per_second,
        it.kernel,
        it.api,
    )
}

/// Returns the latency at each hundredth of the changes.
fn distribution(outcome: &Outcome) -> Vec<(f64, f64)> {
    let latency = step(outcome, Phase::Churn).and_then(|step| step.latency.as_ref());
    let values = latency.into_iter().flat_map(|it| &it.distribution);
    (0_u32..).map(f64::from).zip(values.copied()).collect()
}

/// Returns the figures of a scenario, each the middle one of the rounds.
fn table(results: &Results, scenario: &str) -> Table {
    let subjects = results.subjects();
    let mut table = Table::new(std::iter::once("").chain(subjects.iter().copied()));
    let outcomes: Vec<Vec<&Outcome>> = subjects
        .iter()
        .map(|subject| {
            let outcomes = results.of(scenario);
            outcomes.filter(|it| it.subject == *subject).collect()
        })
        .collect();
    let rounds = |outcomes: &Vec<&Outcome>| outcomes.iter().map(|it| figures(it)).collect();
    let columns: Vec<Vec<Vec<Figure>>> = outcomes.iter().map(rounds).collect();
    let names = columns.iter().flatten().next().cloned();
    for (row, (name, unit, _)) in names.unwrap_or_default().into_iter().enumerate() {
        let values: Vec<Option<f64>> = columns
            .iter()
            .map(|rounds| median(rounds.iter().filter_map(|figures| figures[row].2)))
            .collect();
        if values.iter().any(Option::is_some) {
            let cell = |value: Option<f64>| value.map(|it| format!("{} {unit}", short(it)));
            let cells = values.into_iter().map(cell).map(Option::unwrap_or_default);
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    let correct = outcomes.iter().map(|outcomes| {
        let steps = outcomes.iter().flat_map(|it| &it.steps);
        let mut checks = steps.filter_map(|step| step.is_correct).peekable();
        if checks.peek().is_none() {
            ""
        } else if checks.all(|is_correct| is_correct) {
            "yes"
        } else {
            "NO"
        }
    });
    table.row(std::iter::once("IPVS has exactly the endpoints").chain(correct));
    table
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
            is_late: false,
            notes: Vec::new(),
        }
    }

    #[test]
    fn growth_compares_the_middle_rounds() {
        let results = Results {
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
            ratios(&results),
            [
                "ipvs-proxier: CPU time per change, beyond that of idle time, at 44,000 x 1 is 1.10 times that \
                 at 1,000 x 10"
            ]
        );
    }
}

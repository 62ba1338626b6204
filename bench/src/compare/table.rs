//! The results as tables for a terminal.

use std::fmt::Write as _;

use schedulers::Registry;

use super::results::{Chapter, Report};
use super::scenario::Scenario;
use super::sweep::{NODES, SERVERS, Sweep};

/// Returns the list of scenarios and schedulers.
pub(crate) fn names(scenarios: &[Scenario], registry: &Registry) -> String {
    let mut text = String::from("scenarios\n");
    for scenario in scenarios {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<11} {}", scenario.name, scenario.about);
    }
    let names: Vec<&str> = registry.names().collect();
    let _ = writeln!(
        text,
        "  {:<11} rr against lc, wrr against wlc, by number of nodes and servers\n\
         schedulers\n  {}",
        super::plan::SWEEP,
        names.join(", ")
    );
    text
}

/// Explains the columns whose names do not.
const COLUMNS: &str = "\
spread: coefficient of variation of connections per core; 0 is even
peak:   connections per core of the most loaded server, divided by the mean; 1 is even
lost:   connections that were not served to their end
moved:  connections sent to another server than the previous one of the same client
change: the same after a change that was not to the previous server

";

/// Returns all results.
pub(crate) fn report(report: &Report) -> String {
    let mut text = String::from(if report.scenarios.is_empty() {
        ""
    } else {
        COLUMNS
    });
    for chapter in &report.scenarios {
        text.push_str(&scenario(chapter));
        text.push_str(&findings(report, Some(&chapter.name)));
        text.push('\n');
    }
    for sweep in &report.sweeps {
        text.push_str(&question(sweep));
        text.push('\n');
    }
    text.push_str(&findings(report, None));
    let _ = writeln!(
        text,
        "{} connections in {:.1} s of processor time: {:.0} per millisecond",
        report.simulated,
        report.cpu_secs,
        report.pace()
    );
    text
}

/// Returns the findings for one scenario, or those that need several.
fn findings(report: &Report, scenario: Option<&str>) -> String {
    let about = report
        .findings
        .iter()
        .filter(|finding| finding.scenario.as_deref() == scenario);
    about
        .map(|finding| format!("* {}\n  {}\n", finding.question, finding.answer))
        .collect()
}

fn scenario(chapter: &Chapter) -> String {
    let mut text = format!(
        "{}: {}\n{:<10} {:>8} {:>8} {:>8} {:>8}   {:>15}  {:>6} {:>6} {:>6}  {:>6} {:>6}\n",
        chapter.name,
        chapter.about,
        "",
        "p50 ms",
        "p90",
        "p99",
        "p99.9",
        "p99 of runs",
        "spread",
        "peak",
        "lost",
        "moved",
        "change",
    );
    for row in &chapter.rows {
        let latency = row.latency_ms;
        let _ = writeln!(
            text,
            "{:<10} {:>8.1} {:>8.1} {:>8.1} {:>8.1}   {:>7.1}-{:<7.1}  {:>6} {:>6} {:>6}  {:>6} {:>6}",
            row.scheduler,
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            row.p99_range_ms[0],
            row.p99_range_ms[1],
            number(row.spread),
            number(row.peak),
            percent(Some(row.lost_share)),
            percent(row.moved),
            percent(row.moved_after_change),
        );
    }
    text
}

fn question(sweep: &Sweep) -> String {
    let mut text = format!(
        "sweep, {}: p99 of {} divided by p99 of {} (in brackets: divided by p99 of {} on one node)\n{:<10}",
        sweep.about, sweep.counting, sweep.plain, sweep.counting, ""
    );
    for nodes in NODES {
        let unit = if nodes == 1 { "node" } else { "nodes" };
        let _ = write!(text, " {:>14}", format!("{nodes} {unit}"));
    }
    text.push('\n');
    for servers in SERVERS {
        let _ = write!(text, "{:<10}", format!("{servers} servers"));
        for nodes in NODES {
            let cell = sweep.point(nodes, servers).map(|point| {
                let against_one = sweep
                    .against_one(point)
                    .map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
                format!("{:.2}{against_one}", point.ratio())
            });
            let _ = write!(text, " {:>14}", cell.unwrap_or_else(|| "-".to_owned()));
        }
        text.push('\n');
    }
    text
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

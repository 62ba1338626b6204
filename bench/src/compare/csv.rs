//! The figures as comma-separated values (RFC 4180, line ends without carriage return).
//!
//! Names have no commas, quotes or line ends; an absent value is empty.

use std::fmt::Write as _;

use super::report::Report;

/// A line per scheduler and scenario.
pub(crate) fn rows(report: &Report) -> String {
    let mut text = String::from(
        "scenario,scheduler,arrived,completed,unserved,turned_away,unanswered,broken,staying,\
         lost_share,mean_ms,p50_ms,p90_ms,p99_ms,p999_ms,p99_best_ms,p99_worst_ms,\
         spread,peak,busy,parted_undisturbed,parted_across_change\n",
    );
    for chapter in &report.scenarios {
        for row in &chapter.rows {
            let latency = row.latency_ms;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{}",
                chapter.name,
                row.scheduler,
                row.arrived,
                row.completed,
                row.unserved,
                row.turned_away,
                row.unanswered,
                row.broken,
                row.staying,
                value(Some(row.lost_share)),
                latency.mean,
                latency.p50,
                latency.p90,
                latency.p99,
                latency.p999,
                row.p99_range_ms[0],
                row.p99_range_ms[1],
                value(row.spread),
                value(row.peak),
                value(row.busy),
                value(row.parted_undisturbed),
                value(row.parted_across_change),
            );
        }
    }
    text
}

/// A line per scheduler, scenario and moment.
pub(crate) fn curves(report: &Report) -> String {
    let mut text = String::from("scenario,scheduler,seconds,spread,peak\n");
    for chapter in &report.scenarios {
        for row in &chapter.rows {
            let step = chapter.seconds / row.spread_curve.len() as f64;
            let points = row.spread_curve.iter().zip(&row.peak_curve);
            for (number, (&spread, &peak)) in (0_u32..).zip(points) {
                let _ = writeln!(
                    text,
                    "{},{},{:.3},{},{}",
                    chapter.name,
                    row.scheduler,
                    (f64::from(number) + 0.5) * step,
                    value(spread),
                    value(peak),
                );
            }
        }
    }
    text
}

/// A line per question, number of nodes and number of servers.
pub(crate) fn sweep(report: &Report) -> String {
    let mut text = String::from(
        "question,nodes,servers,connections_per_node_and_server,\
         plain,plain_p99_ms,plain_spread,plain_lost_share,\
         counting,counting_p99_ms,counting_spread,counting_lost_share,p99_ratio\n",
    );
    for sweep in &report.sweeps {
        for point in &sweep.points {
            let _ = writeln!(
                text,
                "{},{},{},{:.4},{},{:.3},{},{},{},{:.3},{},{},{:.4}",
                sweep.name,
                point.nodes,
                point.servers,
                point.connections_per_node_and_server,
                sweep.plain,
                point.plain.p99_ms,
                value(point.plain.spread),
                value(Some(point.plain.lost_share)),
                sweep.counting,
                point.counting.p99_ms,
                value(point.counting.spread),
                value(Some(point.counting.lost_share)),
                point.ratio(),
            );
        }
    }
    text
}

fn value(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.5}")).unwrap_or_default()
}

//! The results as comma-separated values (RFC 4180, lines end with LF).
//!
//! Names contain no commas, quotes or line ends. A missing value is empty.

use std::fmt::Write as _;

use super::results::Report;

/// Returns a line per scheduler and scenario.
pub(crate) fn rows(report: &Report) -> String {
    let mut text = String::from(
        "scenario,scheduler,arrived,completed,unserved,rejected,unanswered,aborted,still_open,\
         lost_share,mean_ms,p50_ms,p90_ms,p99_ms,p999_ms,p99_best_ms,p99_worst_ms,\
         spread,peak,busy,moved,moved_after_change\n",
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
                row.rejected,
                row.unanswered,
                row.aborted,
                row.still_open,
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
                value(row.moved),
                value(row.moved_after_change),
            );
        }
    }
    text
}

/// Returns a line per scheduler, scenario and time.
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

/// Returns a line per pair of schedulers, number of nodes and number of servers.
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
